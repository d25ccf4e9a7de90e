"""What ``lines`` does by address: words from global to shared memory as they are, and elements from there.

``config`` is that of the kernel, which has the sizes of an element and of a word, the padding and the threads.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from forge_core.cute.hold import hold_policy
from forge_core.cute.memory import load_element, store_element
from forge_week0_transpose.configs import CHUNK
from forge_week0_transpose.kernels.tensors import UNSIGNED
from forge_week0_transpose.lines import LINE

__all__ = ["arrive", "element", "end", "head", "log2", "move", "padded", "rows", "share"]


def log2(power: int) -> int:
    """Of a power of two."""
    return power.bit_length() - 1


def share(count: Int32, across: Int32, threads: int) -> tuple[Int32, Int32, Int32]:
    """A thread's first row where ``2 ** across`` threads, or all, have one; how many it has, and how far apart."""
    apart = cutlass.max(Int32(log2(threads)) - across, 0)
    first = cute.arch.thread_idx()[0] >> across
    return first, (count - first + ((1 << apart) - 1)) >> apart, Int32(1) << apart


@cute.jit
def rows(
    config: cutlass.Constexpr,
    source: Int64,
    target: Int32,
    count: Int32,
    pitch: Int64,
    down: Int32,
    across: Int32,
    words: Int32,
):
    """Asks for the first words of ``count`` rows, ``pitch`` bytes apart in global memory and ``down`` in shared memory.

    A row that begins inside a word begins at the same byte of one in shared memory.  ``2 ** across`` threads, not below
    ``words``, stand side by side in a row.
    """
    policy = hold_policy()
    for i in cutlass.range(cute.arch.thread_idx()[0] & ((1 << across) - 1), words, config.threads):
        first, steps, apart = share(count, across, config.threads)
        x, s = source + first * pitch + i * config.word, target + first * down + i * config.word
        for _ in cutlass.range(steps, unroll=2):
            _fetch(config, x, s, policy)
            x, s = x + apart * pitch, s + apart * down


@cute.jit
def end(config: cutlass.Constexpr, source: Int64, target: Int32, left: Int32):
    """Asks for the word that holds a byte; of an incomplete one it loads the elements, of ``left`` bytes.

    A ``cp.async`` of fewer bytes than a word reads the word all the same, and memory may end inside it.
    """
    word, size = config.word, config.itemsize
    count = left + (Int32(source) & (word - 1))
    if count >= word:
        _fetch(config, source, target, hold_policy())
    else:
        for k in cutlass.range_constexpr(word // size - 1):
            if k * size < count:
                x = load_element((source & -word) + k * size, UNSIGNED[size])
                store_element(x, (target & -word) + k * size, UNSIGNED[size], cute.AddressSpace.smem)


def _fetch(config: Any, source: Int64, target: Int32, policy: Any) -> None:
    if config.gather:  # the run's words are asked for by their first byte
        source, target = source & -config.word, target & -config.word
    cute.arch.inline_ptx(
        f"cp.async.ca.shared.global.L2::cache_hint [{{$r0}}], [{{$r1}}], {config.word}, {{$r2}};",
        read_only_args=[target, source, policy],
    )


def arrive() -> None:
    """Waits for the words of all threads."""
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()


def padded(config: Any, at: Int32, step: Any = 0) -> tuple[Int32, Int32]:
    """Where a byte of the run is in shared memory, from its start on; and ``step`` bytes on, that of the run."""
    # Inline PTX, since the compiler makes five instructions of the three, and keeps multiples of the step.
    return cute.arch.inline_ptx(
        f"{{ .reg .s32 row; shr.s32 row, {{$r0}}, {log2(LINE)};\n\t"
        f"mad.lo.s32 {{$w0}}, row, {config.padding}, {{$r0}};\n\tadd.s32 {{$w1}}, {{$r0}}, {{$r1}}; }}",
        write_only_types=[Int32, Int32],
        read_only_args=[at, Int32(step)],
    )


def head(config: Any, address: Int64) -> Int32:
    """Elements from an address to the next chunk."""
    return (-Int32(address) & (CHUNK - 1)) >> log2(config.itemsize)


def element(config: Any, source: Int32) -> Any:
    """The element at a byte of shared memory."""
    return load_element(source, UNSIGNED[config.itemsize], cute.AddressSpace.smem)


def move(config: Any, source: Int32, target: Int64) -> None:
    """Copies an element from shared to global memory."""
    store_element(element(config, source), target, UNSIGNED[config.itemsize])
