"""The numbers that ``select_config`` decides by, measured on each GPU and kept in a table beside the package.

A package declares its thresholds and looks them up by the device; what the tuner measured on a GPU stands in
``thresholds/<gpu>.toml`` of the package, with the date and what it gained::

    THRESHOLDS = Thresholds("week1", Path(__file__).with_name("thresholds"), Threshold("min_part_bytes", 8192, ...))
    THRESHOLDS.value("min_part_bytes", device)

A GPU that was never measured uses the table of the nearest one (the same architecture first, then the size), and
:meth:`Thresholds.note` says so, for ``explain``.  Without any table the declared defaults hold.  Tables are read at the
first look-up and kept; nothing is imported for it but the standard library.
"""

from __future__ import annotations

import contextlib
import functools
import math
import tomllib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from forge_core.device import Device
from forge_core.errors import ForgeError

__all__ = ["Probe", "Table", "Threshold", "ThresholdError", "Thresholds"]


class ThresholdError(ForgeError, ValueError):
    """A table of thresholds is not what is expected."""


@dataclass(frozen=True)
class Probe:
    """What the tuner measures to decide a threshold: cases of the package's benchmarks on both sides of it."""

    operator: str
    shapes: tuple[str, ...]  # for example ("64x131072",)
    dtypes: tuple[str, ...]  # for example ("float32",)


@dataclass(frozen=True)
class Threshold:
    """One number."""

    name: str
    default: int  # where no table has it
    about: str  # what it decides
    candidates: tuple[int, ...]  # the values that the tuner tries
    probes: tuple[Probe, ...]  # what it measures them on


@dataclass(frozen=True)
class Table:
    """What was measured on one GPU: values by threshold, with the GPU's name and the date."""

    device: str
    capability: tuple[int, int]
    sm_count: int
    date: str
    values: Mapping[str, int] = field(hash=False)


@dataclass(frozen=True, eq=False)  # found by identity: hashing all that is declared takes longer than planning may
class Thresholds:
    """The thresholds of a package."""

    week: str  # the package's short name, as the tuner takes it
    folder: Path  # where the tables are
    declared: tuple[Threshold, ...]

    def on(self, device: Device) -> Mapping[str, int]:
        """All thresholds on a device, by name.

        Raises:
            ThresholdError: a table cannot be read.
        """
        overridden = {name: value for (week, name), value in _overrides().get().items() if week == self.week}
        measured = _measured(self, device)
        return {**measured, **overridden} if overridden else measured

    def value(self, name: str, device: Device) -> int:
        """One threshold on a device; raises KeyError where none is declared by that name."""
        return self.on(device)[name]

    def note(self, device: Device) -> str:
        """Whose table a device uses, as an end for ``explain``'s sentence; "" where there is none."""
        table = _nearest(self.folder, device)
        if table is None:
            return ""
        if table.device == device.name:
            return f"; thresholds measured on {table.device}, {table.date}"
        return (
            f"; thresholds of {table.device}, {table.date}: {device.name} was never measured "
            f"(`nox -s tune -- {self.week}` does)"
        )

    @contextlib.contextmanager
    def override(self, name: str, value: int) -> Iterator[None]:
        """Sets a threshold for a block of code and for the current context only; the tuner tries values so."""
        token = _overrides().set({**_overrides().get(), (self.week, name): value})
        try:
            yield
        finally:
            _overrides().reset(token)


@functools.cache
def _overrides() -> ContextVar[Mapping[tuple[str, str], int]]:
    # A function: what a kernel's module imports is compared with its source before the kernel is stored.
    return ContextVar("forge_thresholds", default={})  # noqa: B039 - never changed in place


@functools.cache
def _measured(thresholds: Thresholds, device: Device) -> Mapping[str, int]:
    """All thresholds by the table of a device, or by default."""
    table = _nearest(thresholds.folder, device)
    values = table.values if table is not None else {}
    return MappingProxyType({t.name: values.get(t.name, t.default) for t in thresholds.declared})


@functools.cache
def _nearest(folder: Path, device: Device) -> Table | None:
    """The table of a device, or of the one nearest to it; None without any."""
    tables = _tables(folder)
    if not tables:
        return None

    def distance(table: Table) -> tuple[bool, int, float]:
        generations = abs(table.capability[0] - device.capability[0]) * 10
        generations += abs(table.capability[1] - device.capability[1])
        return table.device != device.name, generations, abs(math.log(table.sm_count / device.sm_count))

    return min(tables, key=distance)


@functools.cache
def _tables(folder: Path) -> tuple[Table, ...]:
    return tuple(_read(path) for path in sorted(folder.glob("*.toml")))


def _read(path: Path) -> Table:
    shown = "/".join(path.parts[-3:])
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        major, minor = raw["capability"]
        values = {name: int(entry["value"]) for name, entry in raw.items() if isinstance(entry, dict)}
        return Table(str(raw["device"]), (int(major), int(minor)), int(raw["sm_count"]), str(raw["date"]), values)
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise ThresholdError(
            f"{shown}: expected a table of thresholds as the tuner writes it ({type(error).__name__}: {error}); "
            "write it anew with `nox -s tune`, or remove it to use the defaults"
        ) from error
