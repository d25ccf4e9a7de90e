"""The options ``--device`` and ``--devices``, checked before anything runs."""

from __future__ import annotations

import torch

from forge_core.bench.plan import Run, UsageError
from forge_core.errors import BenchmarkError

__all__ = ["chosen", "gpu"]


def chosen(device: str | None, devices: str | None, run: Run) -> list[torch.device]:
    """The devices of a run; by default the first GPU, or the CPU if the run allows it.

    Raises:
        UsageError: an option names no device, or one GPU twice, or both were given.
        BenchmarkError: the machine does not have the device.
    """
    if device is not None and devices is not None:
        raise UsageError("--device and --devices were given: expected one of them")
    if devices == "all":
        if not _gpus():
            raise BenchmarkError("--devices all: No GPU devices found")
        return [torch.device("cuda", index) for index in range(_gpus())]
    if devices is not None:
        found = [_parsed(name.strip()) for name in devices.split(",")]
        # The CPU may stand for several devices, to try the option without GPUs.
        if len(set(found)) < len(found) and set(found) != {torch.device("cpu")}:
            raise UsageError(f"--devices: expected different GPUs, got {devices!r}")
        return [_present(one) for one in found]
    if device is not None:
        return [_present(_parsed(device))]
    if not _gpus() and not run.cpu:
        raise BenchmarkError(
            f"{run.name} needs a CUDA GPU: No GPU devices found. With --device cpu the reference is timed on the "
            "CPU instead"
        )
    return [torch.device("cuda", 0) if _gpus() else torch.device("cpu")]


def gpu(text: str, why: str) -> torch.device:
    """The device of a command that needs a GPU; `why` is for the message.

    Raises:
        UsageError: the text names no CUDA device.
        BenchmarkError: the machine does not have the device.
    """
    device = _parsed(text)
    if device.type != "cuda":
        raise UsageError(f"--device: expected cuda or cuda:N, since {why}, got {text!r}")
    return _present(device)


def _gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _parsed(text: str) -> torch.device:
    """The device; a GPU with its index."""
    try:
        device = torch.device(text)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cuda", "cpu"):
        raise UsageError(f"--device: expected cpu, cuda or cuda:N, got {text!r}")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def _present(device: torch.device) -> torch.device:
    if device.type == "cuda" and device.index >= _gpus():
        raise BenchmarkError(f"--device {device}: {_gpus() or 'No'} GPU devices found")
    return device
