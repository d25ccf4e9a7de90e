"""What ``--device`` and ``--devices`` name: checked before anything runs."""

from __future__ import annotations

import torch

from forge_core.bench.plan import Run, UsageError
from forge_core.errors import BenchmarkError

__all__ = ["chosen", "gpu", "several"]


def chosen(text: str | None, run: Run) -> torch.device:
    """The device of a run; without a name the first GPU, or the CPU where the run is for it.

    Raises:
        UsageError: the text names no device.
        BenchmarkError: the device is not here, or there is none that the run is for.
    """
    if text is not None:
        return _present(_parsed(text))
    if _gpus():
        return torch.device("cuda", 0)
    if not run.cpu:
        raise BenchmarkError(
            f"{run.name} needs a CUDA GPU: No GPU devices found. With --device cpu the reference is timed on the "
            "CPU instead"
        )
    return torch.device("cpu")


def several(text: str | None, device: str | None) -> list[str]:
    """The devices of a spread run; empty where it was not asked for.

    Raises:
        UsageError: the text names no devices, or one of them twice, or --device was given, too.
        BenchmarkError: there is no GPU, or not that one.
    """
    if text is None:
        return []
    if device is not None:
        raise UsageError("--device and --devices were given: expected one of them")
    if text == "all":
        if not _gpus():
            raise BenchmarkError("--devices all: No GPU devices found")
        return [f"cuda:{index}" for index in range(_gpus())]
    names = [name.strip() for name in text.split(",")]
    named = [_parsed(name) for name in names]
    if len({device.type for device in named}) > 1:
        raise UsageError(f"--devices: expected GPUs or the CPU, not both, got {text!r}")
    gpus = [device for device in named if device.type == "cuda"]
    for one in gpus:
        if gpus.count(one) > 1:
            raise UsageError(f"--devices: {one} is named twice, and its cases would disturb each other")
    for one in gpus:
        _present(one)
    return names


def gpu(text: str, why: str) -> torch.device:
    """A CUDA device, for a command that needs one.

    Args:
        text: what ``--device`` said.
        why: why it needs one, for the message.

    Raises:
        UsageError: the text names no CUDA device.
        BenchmarkError: the device is not here.
    """
    device = _parsed(text)
    if device.type != "cuda":
        raise UsageError(f"--device: expected cuda or cuda:N, since {why}, got {text!r}")
    if not _gpus():
        raise BenchmarkError(f"{why}: No GPU devices found")
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
    """The device; refused where it is not here."""
    if device.type == "cuda" and device.index >= _gpus():
        raise BenchmarkError(f"--device {device}: {_gpus() or 'No'} GPU devices found")
    return device
