"""The GPU's clock and driver, read where NVIDIA's management library can be imported, and never needed."""

from __future__ import annotations

import importlib
from typing import Any

import torch

__all__ = ["driver_version", "sm_clock_mhz"]


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


def sm_clock_mhz(device: torch.device) -> int | None:
    """The SM clock of a CUDA device at this moment, in MHz; None where it cannot be read."""
    nvml = _nvml()
    if nvml is None:
        return None
    # torch's index counts the devices that CUDA_VISIBLE_DEVICES leaves; the UUID names the same card to both sides.
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        return int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
    except nvml.NVMLError:
        return None


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
