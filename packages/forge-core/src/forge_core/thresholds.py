"""Thresholds of kernel selection, measured on each GPU by the tuner and stored in ``thresholds/<gpu>.toml``.

    THRESHOLDS = Thresholds("week1", Path(__file__).with_name("thresholds"), (Threshold("min_part_bytes", 8192, ...),))
    THRESHOLDS.value("min_part_bytes", device)

A GPU without a table uses that of the nearest one (by architecture, then by size); without any table the declared
defaults are used.  Tables are read once, at a device's first look-up.
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


class ThresholdError(ForgeError, ValueError):
    """A table of thresholds cannot be read."""


# By week and name; set by the tuner.
_overrides: ContextVar[Mapping[tuple[str, str], int]] = ContextVar("forge_thresholds", default=MappingProxyType({}))


@dataclass(frozen=True)
class Probe:
    """The benchmark cases, on both sides of a threshold, that the tuner measures to decide it."""

    operator: str
    shapes: tuple[str, ...]  # for example ("64x131072",)
    dtypes: tuple[str, ...]  # for example ("float32",)


@dataclass(frozen=True)
class Threshold:
    """A threshold."""

    name: str
    default: int  # without a table
    about: str  # what it decides
    candidates: tuple[int, ...]  # the values that the tuner tries
    probes: tuple[Probe, ...]


@dataclass(frozen=True)
class Table:
    """The thresholds measured on one GPU."""

    device: str
    capability: tuple[int, int]
    sm_count: int
    date: str
    values: Mapping[str, int] = field(hash=False)


@dataclass(frozen=True, eq=False)  # hashed by identity, which is faster: it is looked up at every planning
class Thresholds:
    """The thresholds of a package."""

    week: str  # the package's short name, as the tuner takes it
    folder: Path  # of the tables
    declared: tuple[Threshold, ...]

    def on(self, device: Device) -> Mapping[str, int]:
        """All thresholds on a device, by name.

        Raises:
            ThresholdError: a table cannot be read.
        """
        measured, overrides = _measured(self, device)[0], _overrides.get()
        if not overrides:
            return measured
        return {**measured, **{name: value for (week, name), value in overrides.items() if week == self.week}}

    def value(self, name: str, device: Device) -> int:
        """One threshold on a device; raises KeyError where none is declared by that name."""
        return self.on(device)[name]

    def note(self, device: Device) -> str:
        """The table that a device uses, as the end of ``explain``'s sentence; "" without any table."""
        return _measured(self, device)[1]

    @contextlib.contextmanager
    def override(self, name: str, value: int) -> Iterator[None]:
        """Sets a threshold for a block of code, in the current context only; for the tuner."""
        token = _overrides.set({**_overrides.get(), (self.week, name): value})
        try:
            yield
        finally:
            _overrides.reset(token)


@functools.cache
def _measured(thresholds: Thresholds, device: Device) -> tuple[Mapping[str, int], str]:
    """All thresholds on a device without overrides, and the note on their table."""

    def distance(table: Table) -> tuple[bool, int, float]:
        generations = abs(table.capability[0] - device.capability[0]) * 10
        generations += abs(table.capability[1] - device.capability[1])
        return table.device != device.name, generations, abs(math.log(table.sm_count / device.sm_count))

    table = min(map(_read, sorted(thresholds.folder.glob("*.toml"))), key=distance, default=None)
    defaults = {t.name: t.default for t in thresholds.declared}
    if table is None:
        return MappingProxyType(defaults), ""
    note = f"; thresholds measured on {table.device}, {table.date}"
    if table.device != device.name:
        note = (
            f"; thresholds of {table.device}, {table.date}: {device.name} was never measured "
            f"(`nox -s tune -- {thresholds.week}` does)"
        )
    return MappingProxyType({name: table.values.get(name, default) for name, default in defaults.items()}), note


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
