"""Which kernel does a reduction, and how it is configured.

:func:`select_config` is a pure function of a :class:`~forge_week1_reduce.problem.Problem`, an
:class:`~forge_week1_reduce.arithmetic.Arithmetic` and a :class:`~forge_core.device.Device`: no GPU is asked, so the
tests assert the branch it takes for a device they do not have.  :func:`plan` adds the arguments of the launch.

    inner     reduced dimension contiguous    short       rows of up to 4 KB
                                              vectorized  a block a row, where there are rows enough
                                              cluster     fewer rows: several blocks a row (sm_90 and newer)
                                              split       fewer still: any number of blocks a row, two passes
    outer     kept dimension contiguous       column
    strided   neither                         naive or shuffle, whichever reads neighbours together
"""

from __future__ import annotations

from collections.abc import Mapping

from forge_core.choice import Refusal, refuse, require_known
from forge_core.device import Device
from forge_core.errors import UnsupportedError
from forge_core.op import Launch, Variant
from forge_week1_reduce import columns, rows
from forge_week1_reduce.arithmetic import Arithmetic
from forge_week1_reduce.configs import (
    ClusterConfig,
    ColumnConfig,
    Config,
    NaiveConfig,
    SharedConfig,
    ShortConfig,
    ShuffleConfig,
    SplitConfig,
    VectorizedConfig,
)
from forge_week1_reduce.problem import Dim, Problem
from forge_week1_reduce.thresholds import THRESHOLDS

__all__ = ["VARIANTS", "launch_arguments", "plan", "select_config", "workspace_bytes"]

_KERNELS = "forge_week1_reduce.kernels"

#: The kernels of every operator, slowest idea first; the last four each have the shapes that they are for.
VARIANTS: Mapping[str, Variant] = {
    "naive": Variant(f"{_KERNELS}.naive:build", "one thread a row; does every problem"),
    "shared": Variant(f"{_KERNELS}.shared:build", "a block a row, a tree in shared memory"),
    "shuffle": Variant(f"{_KERNELS}.shuffle:build", "a block a row, warp shuffles"),
    "vectorized": Variant(f"{_KERNELS}.vectorized:build", "a block a row, 128-bit loads, several in flight"),
    "short": Variant(f"{_KERNELS}.short:build", "1 to 32 lanes a row, many rows a block"),
    "cluster": Variant(f"{_KERNELS}.cluster:build", "a cluster of blocks a row, through distributed shared memory"),
    "split": Variant(f"{_KERNELS}.split:build", "many blocks a row, and a second pass"),
    "column": Variant(f"{_KERNELS}.column:build", "neighbouring threads have neighbouring columns"),
}

_NAMES: Mapping[type, str] = {
    NaiveConfig: "naive",
    SharedConfig: "shared",
    ShuffleConfig: "shuffle",
    VectorizedConfig: "vectorized",
    ShortConfig: "short",
    ClusterConfig: "cluster",
    SplitConfig: "split",
    ColumnConfig: "column",
}

#: Rows and elements are numbered by 32-bit integers below this.
WIDE_FROM = 2**31


def plan(op: str, problem: Problem, arithmetic: Arithmetic, device: Device, variant: str = "auto") -> Launch:
    """What to launch for a reduction.

    Args:
        op: the operator's name, for messages.
        problem: the canonical problem.
        arithmetic: what is computed.
        device: the GPU it runs on.
        variant: ``"auto"``, or a name in :data:`VARIANTS`.

    Returns:
        The kernel, its configuration, its workspace and the integers it is launched with.

    Raises:
        ArgumentError: there is no such variant.
        UnsupportedError: the named variant cannot do this problem; the message says which can.
    """
    config, why = select_config(op, problem, arithmetic, device, variant)
    parts = _parts(config, problem, device)
    return Launch(
        variant=_NAMES[type(config)],
        builder=VARIANTS[_NAMES[type(config)]].path,
        config=config,
        arguments=launch_arguments(config, problem, parts),
        why=why + THRESHOLDS.note(device),
        read=problem.read_bytes,
        written=problem.written_bytes,
        workspace=workspace_bytes(config, problem, parts),
    )


def select_config(
    op: str, problem: Problem, arithmetic: Arithmetic, device: Device, variant: str = "auto"
) -> tuple[Config, str]:
    """The configuration of a kernel for a problem, and why it was chosen; the arguments are those of :func:`plan`."""
    if problem.src_align < problem.itemsize:
        raise UnsupportedError(
            f"{op}: the input's elements of {problem.itemsize} bytes begin at a multiple of {problem.src_align} bytes; "
            "kernels read whole elements. Pass x.clone().",
            requirement="elements at multiples of their size",
        )
    if variant == "auto":
        return _automatic(problem, arithmetic, device)
    require_known(op, variant, VARIANTS)
    found = _try(variant, problem, arithmetic, device)
    if isinstance(found, Refusal):
        refuse(op, variant, found, _able(problem, arithmetic, device))
    return found, f"variant={variant!r} was asked for"


def launch_arguments(config: Config, problem: Problem, parts: int = 1) -> tuple[int, ...]:
    """The integers that a kernel is launched with: sizes in elements, distances in bytes.

    First as many as ``config.integers``, then groups of as many as ``config.lengths`` says, laid flat.
    """
    size, out_size = problem.itemsize, problem.out_itemsize
    kept = _kept(problem.rows, problem.kept, size, out_size)
    if isinstance(config, (NaiveConfig, SharedConfig, ShuffleConfig)):
        return (*kept, *_reduced(problem.count, problem.reduced, size))
    if isinstance(config, ColumnConfig):
        columns_ = problem.kept[-1]
        around = _kept(problem.rows // columns_.size, problem.kept[:-1], size, out_size)
        reduced = _reduced(problem.count, problem.reduced, size)
        head = (columns_.size, columns_.dst * out_size, parts, *around, *reduced)
        return head if config.finish is None else (*head, *kept)
    length = problem.reduced[-1].size
    if isinstance(config, ShortConfig):
        return (length, *kept)
    outer = _reduced(problem.count // length, problem.reduced[:-1], size)
    if isinstance(config, SplitConfig):
        return (length, parts, *kept, *outer)
    return (length, *kept, *outer)


def workspace_bytes(config: Config, problem: Problem, parts: int) -> int:
    """Bytes of the accumulators between two passes; 0 where there is one pass."""
    two_passes = isinstance(config, SplitConfig) or (isinstance(config, ColumnConfig) and config.finish is not None)
    return parts * problem.rows * config.arithmetic.acc.itemsize if two_passes else 0


def _kept(count: int, dims: tuple[Dim, ...], size: int, out_size: int) -> tuple[int, ...]:
    return (count, *(n for d in reversed(dims) for n in (d.size, d.src * size, d.dst * out_size)))


def _reduced(count: int, dims: tuple[Dim, ...], size: int) -> tuple[int, ...]:
    return (count, *(n for d in reversed(dims) for n in (d.size, d.src * size)))


def _parts(config: Config, problem: Problem, device: Device) -> int:
    if isinstance(config, SplitConfig):
        return rows.split_parts(problem, device)
    if isinstance(config, ColumnConfig):
        return config.blocks if config.finish is None else columns.split_parts(config, problem, device)
    return 1


def _able(problem: Problem, arithmetic: Arithmetic, device: Device) -> list[str]:
    """The kernels that can do a problem."""
    return [name for name in VARIANTS if not isinstance(_try(name, problem, arithmetic, device), Refusal)]


def _automatic(problem: Problem, arithmetic: Arithmetic, device: Device) -> tuple[Config, str]:
    if problem.kind == "inner":
        return rows.automatic(problem, arithmetic, device) or _strided(problem, arithmetic)
    if problem.kind == "outer":
        return columns.automatic(problem, arithmetic, device) or _strided(problem, arithmetic)
    if problem.kind == "empty":
        return _elementwise(NaiveConfig, problem, arithmetic), "there is nothing to add up"
    return _strided(problem, arithmetic)


def _try(variant: str, problem: Problem, arithmetic: Arithmetic, device: Device) -> Config | Refusal:
    """The configuration of one kernel for a problem, or a Refusal."""
    if variant in ("naive", "shared", "shuffle"):
        kinds = {"naive": NaiveConfig, "shared": SharedConfig, "shuffle": ShuffleConfig}
        if variant != "naive" and problem.rows >= WIDE_FROM:
            return Refusal("fewer than 2^31 rows, a block each", str(problem.rows))
        return _elementwise(kinds[variant], problem, arithmetic)
    if variant == "column":
        return columns.column(problem, arithmetic, device)
    return {
        "vectorized": rows.vectorized,
        "short": rows.short,
        "cluster": rows.cluster,
        "split": rows.split,
    }[variant](problem, arithmetic, device)


def _elementwise(kind: type, problem: Problem, arithmetic: Arithmetic, threads: int = 256) -> Config:
    wide = max(problem.rows, problem.count) >= WIDE_FROM
    config: Config = kind(arithmetic, len(problem.kept), len(problem.reduced), wide=wide, threads=threads)
    return config


#: Elements of a row from which a block reads it faster than a thread does, whatever the order.
BLOCK_A_ROW_FROM = 1024


def _strided(problem: Problem, arithmetic: Arithmetic) -> tuple[Config, str]:
    """Element by element: neighbours in memory belong to neighbouring threads."""
    kept = abs(problem.kept[-1].src) if problem.kept else 2**62
    reduced = abs(problem.reduced[-1].src) if problem.reduced else 2**62
    short = problem.count < 32 or (kept <= reduced and problem.count < BLOCK_A_ROW_FROM)
    if short or problem.rows >= WIDE_FROM:
        return (
            _elementwise(NaiveConfig, problem, arithmetic, threads=128),
            "no dimension that wide loads could take; a thread a row",
        )
    # A block no longer than the row, but a whole warp.
    threads = min(256, max(32, 1 << (problem.count // 4).bit_length()))
    return (
        _elementwise(ShuffleConfig, problem, arithmetic, threads=threads),
        "no dimension that wide loads could take; a block a row",
    )
