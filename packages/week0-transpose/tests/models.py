"""Models of the kernels on the CPU: the same index arithmetic, one thread after the other, on plain bytes.

The models share with the kernels what decides where a byte goes (the configurations' derived sizes, and
``kernels/words.py``: swizzle, funnel, transposition network, interleaving) and repeat the rest: tile numbering, clamps,
predicates.  They write each byte of the output with a counter, so that a test can ask for "exactly once".
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forge_week0_transpose.configs import RealignedConfig, ShiftedConfig, SkinnyConfig, TiledConfig, VectorizedConfig
from forge_week0_transpose.kernels import words

CHUNK: int = words.CHUNK

Chunk = list[int]


def permute(a: int, b: int, selector: int) -> int:
    """PTX prmt.b32."""
    pool = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    return int.from_bytes(bytes(pool[selector >> (4 * i) & 7] for i in range(4)), "little")


def shift_right(low: int, high: int, bits: int) -> int:
    """PTX shf.r.wrap.b32."""
    return (high << 32 | low) >> bits & 0xFFFFFFFF


def shift_left(low: int, high: int, bits: int) -> int:
    """PTX shf.l.wrap.b32."""
    return (high << 32 | low) << bits >> 32 & 0xFFFFFFFF


def select(condition: bool, a: Any, b: Any) -> Any:
    return a if condition else b


def to_words(data: bytes) -> Chunk:
    return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]


def to_bytes(chunk: Chunk) -> bytes:
    return b"".join(word.to_bytes(4, "little") for word in chunk)


@dataclass
class Machine:
    """Global memory, one block's shared memory, and a log of shared-memory accesses.

    Attributes:
        src: the source's bytes, from ``src_base`` on; nothing else may be read.
        dst: the destination's bytes, from ``dst_base`` on; nothing else may be written.
    """

    src: np.ndarray[Any, Any]
    dst_bytes: int
    src_base: int = 0
    dst_base: int = 0
    shared_bytes: int = 0
    log: list[tuple[str, int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dst = np.zeros(self.dst_bytes, np.uint8)
        self.written = np.zeros(self.dst_bytes, np.int32)
        self.shared = bytearray(self.shared_bytes)

    def load(self, address: int, width: int) -> bytes:
        assert address % width == 0, "misaligned load"
        # Reads may reach back to the 16-byte boundary before the tensor, which is in the same allocation.
        begin = address - self.src_base
        assert begin > -CHUNK and begin + width <= len(self.src), "load outside the tensor"
        if begin < 0:
            return bytes(-begin) + self.src[: begin + width].tobytes()
        return self.src[begin : begin + width].tobytes()

    def store(self, address: int, data: bytes, width: int) -> None:
        assert address % width == 0 and len(data) == width, "misaligned store"
        begin = address - self.dst_base
        assert begin >= 0 and begin + width <= len(self.dst), "store outside the tensor"
        self.dst[begin : begin + width] = np.frombuffer(data, np.uint8)
        self.written[begin : begin + width] += 1

    def get(self, thread: int, step: int, place: int, width: int) -> bytes:
        assert place % width == 0 and place >= 0 and place + width <= len(self.shared)
        self.log.append((f"read {step}", thread, place, width))
        return bytes(self.shared[place : place + width])

    def put(self, thread: int, step: int, place: int, data: bytes) -> None:
        assert place % len(data) == 0 and place >= 0 and place + len(data) <= len(self.shared)
        self.log.append((f"write {step}", thread, place, len(data)))
        self.shared[place : place + len(data)] = data

    def conflicts(self) -> dict[str, int]:
        """For each step, the most often that a bank is touched by one wavefront, beyond the once that it must be.

        Accesses of 16 bytes go by 8 lanes at a time, of 8 bytes by 16, narrower ones by 32; lanes that read the same
        word share it.
        """
        steps: dict[tuple[str, int, int], list[int]] = {}
        widths: dict[str, int] = {}
        for step, thread, place, width in self.log:
            lanes = 32 * 4 // max(width, 4)
            steps.setdefault((step, thread // lanes, width), []).append(place)
            widths[step] = width
        worst: dict[str, int] = {}
        for (step, _, width), places in steps.items():
            touched = {word for place in places for word in range(place // 4, (place + max(width, 4) - 1) // 4 + 1)}
            banks = np.bincount([word % 32 for word in touched], minlength=32)
            worst[step] = max(worst.get(step, 0), int(banks.max()) - 1)
        return worst


@dataclass(frozen=True)
class Case:
    """A matrix problem: sizes in elements, pitches in bytes."""

    rows: int
    cols: int
    src_pitch: int
    dst_pitch: int


def vectorized(config: VectorizedConfig, case: Case, m: Machine) -> None:
    size, v, width = config.itemsize, config.chunk_items, config.src_width
    items = width // size
    row_tiles, col_tiles = -(-case.rows // config.tile_rows), -(-case.cols // config.tile_cols)
    blocks, chunks = -(-case.rows // v), case.cols // items
    inner, outer = (col_tiles, row_tiles) if config.by_columns else (row_tiles, col_tiles)
    for along, within in itertools.product(range(outer), range(inner)):
        row_tile, col_tile = (along, within) if config.by_columns else (within, along)
        first_block, first_chunk = row_tile * config.row_chunks, col_tile * config.col_chunks
        assert first_block < blocks and first_chunk < chunks
        for thread in range(config.threads):
            cc, row_block = thread % config.col_chunks, thread // config.col_chunks
            chunk = min(first_chunk + cc, chunks - 1)
            if config.ragged:
                row = min((first_block + row_block) * v, case.rows - 1)
            else:
                row = min(first_block + row_block, blocks - 1) * v
            address = m.src_base + row * case.src_pitch + chunk * width
            block_rows = []
            for k in range(v):
                block_rows.append(to_words(m.load(address, width)))
                if not config.ragged or row + k + 1 < case.rows:
                    address += case.src_pitch
            for j, column in enumerate(words.transpose_chunks(block_rows, size, permute)):
                place = (cc * items + j) * config.line_bytes + words.swizzle(row_block, cc) * CHUNK
                m.put(thread, j, place, to_bytes(column))
        per_line = config.line_bytes // config.dst_width
        for thread in range(config.threads):
            part, line0 = thread % per_line, thread // per_line
            inside = part * config.dst_width
            for i in range(config.stores):
                line = line0 + i * (config.threads // per_line)
                place = (
                    line * config.line_bytes + words.swizzle(inside // CHUNK, line // items) * CHUNK + inside % CHUNK
                )
                data = m.get(thread, i, place, config.dst_width)
                begin = first_block * CHUNK + inside
                lines = min(chunks - first_chunk, config.col_chunks) * items
                if begin < case.rows * size and line < lines:
                    at = m.dst_base + (col_tile * config.tile_cols + line) * case.dst_pitch + begin
                    m.store(at, data, config.dst_width)


def shifted(config: ShiftedConfig, case: Case, m: Machine) -> None:
    size, v = config.itemsize, config.chunk_items
    row_tiles, col_tiles = -(-(case.rows + config.reach) // config.tile_rows), -(-case.cols // config.tile_cols)
    end = m.src_base + (case.rows - 1) * case.src_pitch + case.cols * size
    inner, outer = (col_tiles, row_tiles) if config.by_columns else (row_tiles, col_tiles)
    for along, within in itertools.product(range(outer), range(inner)):
        row_tile, col_tile = (along, within) if config.by_columns else (within, along)
        row_base, col_base = row_tile * config.tile_rows, col_tile * config.tile_cols
        first = row_base - config.halo
        cols_left = min(case.cols - col_base, config.tile_cols)
        low, high = max(-first, 0), min(case.rows - first, config.lines) - 1
        last = (end & -CHUNK) - CHUNK
        for thread in range(config.threads):
            cc, row_block = thread % config.col_chunks, thread // config.col_chunks
            line = row_block * v
            nearest = min(max(line, low), high)
            chunk = cc if config.src_shift else min(cc, cols_left // v - 1)
            segment = m.src_base + (first + nearest) * case.src_pitch + col_base * size + chunk * CHUNK
            block_rows = []
            for k in range(v):
                if config.src_shift:
                    at = segment & -CHUNK
                    lo, hi = (to_words(m.load(min(a, last), CHUNK)) for a in (at, at + CHUNK))
                    block_rows.append(words.funnel_right(lo, hi, segment & 15, size, select, shift_right))
                else:
                    block_rows.append(to_words(m.load(segment, CHUNK)))
                segment += case.src_pitch if low <= line + k < high else 0
            for j, column in enumerate(words.transpose_chunks(block_rows, size, permute)):
                m.put(
                    thread,
                    j,
                    (cc * v + j) * config.line_bytes + words.swizzle(row_block, cc) * CHUNK,
                    to_bytes(column),
                )

        def place_of(line: int, row: int) -> int:
            return int(line * config.line_bytes + words.swizzle(row // v, line // v) * CHUNK + row % v * size)

        if config.src_shift and first + config.lines >= case.rows and col_base + config.tile_cols + v > case.cols:
            count = (end & 15) // size
            for thread in range(count):
                line = case.cols - col_base - count + thread
                if 0 <= line < config.tile_cols:
                    data = m.load(end - (count - thread) * size, size)
                    at = place_of(line, case.rows - 1 - first)
                    m.shared[at : at + size] = data
        for thread in range(config.threads):
            part, line0 = thread % config.row_chunks, thread // config.row_chunks
            after = min(part + 1, config.row_chunks - 1)
            for i in range(v):
                line = line0 + i * config.col_chunks
                address = m.dst_base + (col_base + line) * case.dst_pitch + (row_base + part * v) * size
                place = line * config.line_bytes
                lo = to_words(m.get(thread, 2 * i, place + words.swizzle(part, line // v) * CHUNK, CHUNK))
                begin = part * v
                if config.dst_shift:
                    hi = to_words(m.get(thread, 2 * i + 1, place + words.swizzle(after, line // v) * CHUNK, CHUNK))
                    shift = address & 15
                    lo = words.funnel_left(lo, hi, shift, size, select, shift_left)
                    begin += config.halo - shift // size
                inside = begin >= low and begin + v - 1 <= high if config.dst_shift else begin <= high
                if inside and line < cols_left and part < config.row_chunks - config.halo_chunks:
                    m.store(address & -CHUNK, to_bytes(lo), CHUNK)
        if config.dst_shift and (row_base == 0 or row_base + config.tile_rows + v > case.rows):
            for line in range(cols_left):
                address = m.dst_base + (col_base + line) * case.dst_pitch
                before = (address & 15) // size
                head = min(v - before, case.rows) if before else 0
                rows = list(range(head)) if row_base == 0 else []
                final = (case.rows + before) // v
                if 0 <= final * v - row_base < config.tile_rows:
                    rows += range(max(final * v - before, head), case.rows)
                for row in rows:
                    at = place_of(line, row - first)
                    m.store(address + row * size, bytes(m.shared[at : at + size]), size)


def skinny(config: SkinnyConfig, length: int, pitch: int, m: Machine) -> None:
    size, n = config.itemsize, config.lines
    for tile in range(-(-length // config.tile)):
        base = tile * config.tile
        left = min(length - base, config.tile)
        if left < config.tile:
            for index in range(left * n):
                line, run = (index % n) * pitch + (base + index // n) * size, (base * n + index) * size
                src, dst = (line, run) if config.gather else (run, line)
                m.store(m.dst_base + dst, m.load(m.src_base + src, size), size)
            continue
        lines = [base * size + r * pitch for r in range(n)]
        run = base * n * size
        chunks: dict[int, list[Chunk]] = {}
        for thread in range(config.threads):
            if config.gather:
                loaded = [_parts(m, m.src_base + at + thread * CHUNK, config.line_width) for at in lines]
                chunks[thread] = words.interleave(loaded, size, permute)
                for j in range(n):
                    place = words.run_place(thread * n + j, n) * CHUNK
                    m.put(thread, j, place, to_bytes(chunks[thread][j]))
            else:
                for j in range(n):
                    chunk = thread + j * config.threads
                    data = to_bytes(_parts(m, m.src_base + run + chunk * CHUNK, config.run_width))
                    m.put(thread, j, words.run_place(chunk, n) * CHUNK, data)
        for thread in range(config.threads):
            if config.gather:
                for j in range(n):
                    chunk = thread + j * config.threads
                    data = m.get(thread, j, words.run_place(chunk, n) * CHUNK, CHUNK)
                    _store_parts(m, m.dst_base + run + chunk * CHUNK, data, config.run_width)
            else:
                own = [to_words(m.get(thread, j, words.run_place(thread * n + j, n) * CHUNK, CHUNK)) for j in range(n)]
                for r, chunk_words in enumerate(words.deinterleave(own, size, permute)):
                    at = m.dst_base + lines[r] + thread * CHUNK
                    _store_parts(m, at, to_bytes(chunk_words), config.line_width)


def realigned(config: RealignedConfig, case: Case, m: Machine) -> None:
    """Copies ``case.rows`` rows of ``case.cols`` elements."""
    size, length = config.itemsize, case.cols * config.itemsize
    end = m.src_base + (case.rows - 1) * case.src_pitch + length
    chunks = (length + 2 * (CHUNK - 1)) // CHUNK
    for row in range(case.rows):
        src_row, dst_row = m.src_base + row * case.src_pitch, m.dst_base + row * case.dst_pitch
        for chunk in range(chunks):
            begin = chunk * CHUNK - (dst_row & 15)
            first = (src_row + begin) & -CHUNK
            if begin >= 0 and begin + CHUNK <= length and first + 2 * CHUNK <= end:
                lo, hi = (to_words(m.load(first + i, CHUNK)) for i in (0, CHUNK))
                offset = (src_row + begin) & 15
                moved = words.funnel_right(lo, hi, offset, size, select, shift_right)
                m.store(dst_row + begin, to_bytes(moved), CHUNK)
            else:
                for place in range(max(begin, 0), min(begin + CHUNK, length), size):
                    m.store(dst_row + place, m.load(src_row + place, size), size)


def _parts(m: Machine, address: int, width: int) -> Chunk:
    return to_words(b"".join(m.load(address + i, width) for i in range(0, CHUNK, width)))


def _store_parts(m: Machine, address: int, data: bytes, width: int) -> None:
    for i in range(0, CHUNK, width):
        m.store(address + i, data[i : i + width], width)


def tiled(config: TiledConfig, case: Case, m: Machine) -> None:
    size, tile = config.itemsize, config.tile
    for row_base in range(0, case.rows, tile):
        for col_base in range(0, case.cols, tile):
            rows_left, cols_left = min(case.rows - row_base, tile), min(case.cols - col_base, tile)
            for i in range(config.steps):
                for thread in range(config.threads):
                    x, y = thread % tile, thread // tile + i * config.lines
                    if y < rows_left and x < cols_left:
                        at = m.src_base + (row_base + y) * case.src_pitch + (col_base + x) * size
                        m.put(thread, i, (y * (tile + 1) + x) * size, m.load(at, size))
            for i in range(config.steps):
                for thread in range(config.threads):
                    x, y = thread % tile, thread // tile + i * config.lines
                    if y < cols_left and x < rows_left:
                        at = m.dst_base + (col_base + y) * case.dst_pitch + (row_base + x) * size
                        m.store(at, m.get(thread, i, (x * (tile + 1) + y) * size, size), size)
