"""The rules by which versions and architectures fit together: pure functions of their arguments."""

from __future__ import annotations

import re

from forge_core.device import MIN_CAPABILITY

__all__ = [
    "DSL_RANGE",
    "FFI_MINIMUM",
    "MIN_CAPABILITY",
    "TORCH_MINIMUM",
    "major",
    "minimum_driver",
    "numbers",
    "torch_supports",
    "variant_in_use",
]

# The first row whose version the CUDA version begins with.  CUDA 12 runs on any driver of its first release by its
# minor-version compatibility; 12.9 is named because the DSL's compiler for CUDA 12 is of that release.
_DRIVERS = (("13", "580.65.06"), ("12.9", "575.51.03"), ("12", "525.60.13"))

TORCH_MINIMUM = "2.9"
DSL_RANGE = ">=4.7,<5"
FFI_MINIMUM = "0.1.11"


def numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: 2.13.0+cpu is (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def major(version: str) -> int:
    """The first number of a version."""
    return numbers(version)[0]


def minimum_driver(cuda: str) -> str | None:
    """The oldest driver that a CUDA version asks for; None for a version this table does not know.

    Args:
        cuda: for example ``"12.8"``.
    """
    for prefix, driver in _DRIVERS:
        if numbers(cuda)[: len(numbers(prefix))] == numbers(prefix):
            return driver
    return None


def variant_in_use(variants: tuple[int, ...], driver_cuda: str | None) -> int | None:
    """The CUDA version of the libraries that the DSL will load: the newest that the driver serves."""
    served = [v for v in variants if driver_cuda is None or v <= major(driver_cuda)]
    return max(served, default=None)


def torch_supports(arches: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether code built for ``arches`` runs on a GPU.

    Machine code (``sm_``) runs on its own major version from its minor version on, ``a`` code on its own GPU alone;
    PTX (``compute_``) is compiled by the driver for anything newer.
    """
    for arch in arches:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if match is None:
            continue
        built = (int(match[2]), int(match[3]))
        if match[4] == "a":
            fits = built == capability
        elif match[1] == "compute":
            fits = built <= capability
        else:
            fits = built[0] == capability[0] and built <= capability
        if fits:
            return True
    return False
