"""The GPU's clock and other users, read by NVML where it is installed, and what disturbs a measurement."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from forge_core.timing import Timing

#: Load average per core from which the machine counts as shared.
BUSY_SHARE = 0.5

#: Spread from which samples count as uneven, and the words for it.
UNEVEN = 0.25
UNEVEN_NOTE = "Uneven samples, of which the middle 60 % are wider than a quarter of the median"

#: Reasons for a lowered clock, by the name of NVML's bit.
_REASONS = {
    "nvmlClocksThrottleReasonSwPowerCap": "the power limit",
    "nvmlClocksThrottleReasonHwSlowdown": "a hardware slowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "heat",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "heat",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "a power brake",
}

_Answer = TypeVar("_Answer")


def _ask(device: torch.device, question: Callable[[Any, Any], _Answer]) -> _Answer | None:
    """The answer to a question to NVML about its handle of a CUDA device; None without NVML or on its errors."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    # torch's index counts the devices in CUDA_VISIBLE_DEVICES, NVML's all; the UUID is the same in both.
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    try:
        nvml.nvmlInit()
        return question(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"))
    except nvml.NVMLError:
        return None


def sm_clock_mhz(device: torch.device) -> int | None:
    """The current SM clock of a CUDA device, in MHz; None where it cannot be read."""
    return _ask(device, lambda nvml, gpu: int(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)))


def slowed_by(device: torch.device) -> list[str]:
    """Why the GPU runs below its full clock; empty where it does not, or where it cannot be read."""

    def reasons(nvml: Any, gpu: Any) -> list[str]:
        if not hasattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons"):  # depends on the version of pynvml
            return []
        bits = int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))
        return sorted({words for name, words in _REASONS.items() if bits & getattr(nvml, name, 0)})

    return _ask(device, reasons) or []


def other_users(device: torch.device) -> int | None:
    """The number of other processes that compute on the GPU; None where it cannot be read."""

    def count(nvml: Any, gpu: Any) -> int:
        return sum(int(process.pid) != os.getpid() for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu))

    return _ask(device, count)


def busy_cpu() -> str:
    """A note if the load average of the last minute is at least half the cores, else ""."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < BUSY_SHARE * cores:
        return ""
    return f"The machine was shared: load average {load:.1f} on {cores} cores when the run began."


def disturbances(timings: Mapping[str, Timing], device: torch.device) -> list[str]:
    """Notes on a measurement: a clock that moved, a throttled GPU, uneven samples."""
    notes = []
    moved = next((timing for timing in timings.values() if timing.clocks_moved), None)
    if moved is not None:
        notes.append(f"The clock moved while the samples were taken: {moved.clocks}.")
    slowed = slowed_by(device) if device.type == "cuda" else []
    if slowed:
        notes.append(f"The GPU was slowed down by {' and '.join(slowed)}.")
    uneven = [name for name, timing in timings.items() if timing.spread > UNEVEN]
    if uneven:
        notes.append(f"{UNEVEN_NOTE} ({', '.join(uneven)}).")
    return notes
