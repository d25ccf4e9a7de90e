"""The GPU's clock, its driver and its other users, read where NVIDIA's management library can be imported.

Nothing here is needed: where it cannot be read, the record says "not read".
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

import torch

from forge_core.timing.result import Timing

__all__ = ["UNEVEN_NOTE", "busy_cpu", "disturbances", "driver_version", "other_users", "slowed_by", "sm_clock_mhz"]

#: Share of the cores that others may keep busy before a note says so.
BUSY_SHARE = 0.5

#: Spread from which samples count as uneven, and the words for it.
UNEVEN = 0.25
UNEVEN_NOTE = "Uneven samples, of which the middle 60 % are wider than a quarter of the median"

#: Reasons for a lowered clock that a reader must know of, by the name of NVML's bit.
_REASONS = {
    "nvmlClocksThrottleReasonSwPowerCap": "the power limit",
    "nvmlClocksThrottleReasonHwSlowdown": "a hardware slowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "heat",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "heat",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "a power brake",
}


def _nvml() -> Any | None:
    """The pynvml module, initialised, or None where it cannot be had."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def _handle(nvml: Any, device: torch.device) -> Any:
    # torch's index counts the devices that CUDA_VISIBLE_DEVICES leaves; the UUID names the same card to both sides.
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    return nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")


def sm_clock_mhz(device: torch.device) -> int | None:
    """The SM clock of a CUDA device at this moment, in MHz; None where it cannot be read."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        return int(nvml.nvmlDeviceGetClockInfo(_handle(nvml, device), nvml.NVML_CLOCK_SM))
    except nvml.NVMLError:
        return None


def slowed_by(device: torch.device) -> list[str]:
    """Why the GPU runs below its full clock at this moment; empty where it does not, or where it cannot be read."""
    nvml = _nvml()
    if nvml is None:
        return []
    try:
        bits = int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(_handle(nvml, device)))
    except (nvml.NVMLError, AttributeError):
        return []
    return sorted({words for name, words in _REASONS.items() if bits & int(getattr(nvml, name, 0))})


def other_users(device: torch.device) -> int | None:
    """How many other processes compute on the GPU; None where it cannot be read."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(_handle(nvml, device))
    except nvml.NVMLError:
        return None
    return sum(int(process.pid) != os.getpid() for process in running)


def busy_cpu() -> str:
    """A note where others keep much of the CPU busy, else ""; the load average of the last minute decides."""
    if not hasattr(os, "getloadavg"):
        return ""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < BUSY_SHARE * cores:
        return ""
    return f"The machine was shared: load average {load:.1f} on {cores} cores when the run began."


def disturbances(timings: Mapping[str, Timing], device: torch.device) -> list[str]:
    """What disturbed a measurement that has just ended: a clock that moved, a GPU that is slowed down, uneven samples.

    Args:
        timings: by contender.
        device: where they were taken.
    """
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


def driver_version() -> str | None:
    """The driver's version, for example ``"580.65.06"``; None where it cannot be read."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        version = nvml.nvmlSystemGetDriverVersion()
    except nvml.NVMLError:
        return None
    return version.decode() if isinstance(version, bytes) else str(version)
