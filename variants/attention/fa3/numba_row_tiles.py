"""Tiles of rows that a block takes, and which tiles of keys each visits. The CUDA twin is row_tiles.cuh in _hopper."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

from numba import cuda, int32, uint32

from variants._hopper import PASSES, WarpgroupTile
from variants._hopper.numba_limits import WarpgroupLimits
from variants._hopper.numba_sequences import rows_of, warpgroup_sequences


class Packs(NamedTuple):
    """Heads that share K and V are packed: a warpgroup has 1 << head_shift rows of each, one head after the other."""

    count: Any
    """Number of packs in all sequences."""
    per_kv_head: Any
    per_sequence: Any
    head_shift: Any
    row_tiles: Any
    """Tiles of rows of each pack."""
    at_once: Any
    """Packs whose K and V stay in L2 together."""


class Problem(NamedTuple):
    """What does not change during a launch; as `of_sequence` returns it, with the lengths of one sequence."""

    q_len: Any
    kv_len: Any
    packs: Any
    limits: Any
    sequences: Any


class RowPlace(NamedTuple):
    """Which tile of rows, of which pack."""

    pack: Any
    row_tile: Any


class Reached(NamedTuple):
    """Where a block is among unpadded sequences."""

    turn: Any
    sequence: Any
    before: Any
    """Number of that sequence's first tile of rows."""


class RowTile(NamedTuple):
    """A tile of rows, and the tiles of keys of which some row sees a key: first to end - 1."""

    pack: Any
    """Among those of all batch entries."""
    head: Any
    """The pack, among those of its batch entry."""
    first_row: Any
    """Of each head of the pack."""
    own: Any
    """What the tile has of its sequence."""
    first: Any
    end: Any


# The problem of one sequence.
@cuda.jit(device=True, forceinline=True)
def of_sequence(p, own):
    return Problem(own.q_len, own.kv_len, p.packs, p.limits, p.sequences)


@functools.cache
def numba_row_tiles(tile: WarpgroupTile, limits: WarpgroupLimits, varlen: bool) -> SimpleNamespace:
    """Device functions for tiles of these sizes; `varlen`: where sequences begin is read."""
    BC, CONSUMERS = tile.Bc, tile.consumers
    HIDES_FIRST, HIDES_LAST, first_seen, end_seen = limits.HIDES_FIRST, limits.HIDES_LAST, limits.first, limits.end
    sequences = warpgroup_sequences(varlen)
    at, number = sequences.at, sequences.number

    # Tiles that so many keys take.
    @cuda.jit(device=True, forceinline=True)
    def tiles_of(keys):
        return int32(uint32(keys + BC - 1) // uint32(BC))

    # Rows of each head in a tile of rows.
    @cuda.jit(device=True, forceinline=True)
    def head_rows(packs):
        return int32(int32(CONSUMERS) << packs.head_shift)

    # Tile `index` of those of `count` packs, of `row_tiles` each. Where the last keys are hidden from some rows, the
    # rows that may see most keys, the last ones, come first, of as many packs at once as have K and V in L2: short work
    # is left for the end, when not all blocks find some. Packs that are left over come first, when longer work follows.
    @cuda.jit(device=True, forceinline=True)
    def row_place(index, count, row_tiles, at_once):
        index, count = uint32(index), uint32(count)
        row_tiles, at_once = uint32(row_tiles), uint32(at_once)
        if HIDES_LAST:
            from_end = uint32(count * row_tiles - uint32(1) - index)
            packs_after = uint32(from_end // uint32(at_once * row_tiles) * at_once)
            together = uint32(min(at_once, uint32(count - packs_after)))
            inside = uint32(from_end - packs_after * row_tiles)
            pack = int32(count - uint32(1) - packs_after - inside % together)
            row_tile = int32(inside // together)
        else:
            pack = int32(index // row_tiles)
            row_tile = int32(index % row_tiles)
        return RowPlace(pack, row_tile)

    # The index of the block's next tile of rows, whose number is what the counter says; it increases. A batch: the
    # same. Unpadded sequences: those with more than half as many tiles of rows as the longest one may have come first,
    # then those with more than a quarter, then the others. The index counts tiles as if all sequences were as long as
    # the longest.
    @cuda.jit(device=True, forceinline=True)
    def index_of(number, reached, p):
        if not varlen:
            return number, reached
        turn, sequence, before = reached
        packs, longest, rows = p.packs.per_sequence, p.packs.row_tiles, head_rows(p.packs)
        index = int32(p.packs.count * longest)
        while turn < PASSES:
            most = int32(longest >> turn)
            least = int32(0) if turn == PASSES - 1 else int32(most >> int32(1))
            tiles = int32(uint32(rows_of(p.sequences, sequence) + rows - 1) // uint32(rows))
            if least < tiles <= most:
                if number < before + tiles * packs:
                    at = row_place(int32(number - before), packs, tiles, p.packs.at_once)
                    index = int32(int32(sequence * packs + at.pack) * longest + at.row_tile)
                    break
                before = int32(before + tiles * packs)
            sequence = int32(sequence + 1)
            if sequence * packs >= p.packs.count:
                turn, sequence = int32(turn + 1), int32(0)
        return index, Reached(turn, sequence, before)

    @cuda.jit(device=True, forceinline=True)
    def place_of(index, packs):
        if varlen:
            index, row_tiles = uint32(index), uint32(packs.row_tiles)
            return RowPlace(int32(index // row_tiles), int32(index % row_tiles))
        return row_place(index, packs.count, packs.row_tiles, packs.at_once)

    @cuda.jit(device=True, forceinline=True)
    def row_tile(index, p):
        at_ = place_of(index, p.packs)
        pack, first_row = at_.pack, int32(at_.row_tile * head_rows(p.packs))
        sequence = uint32(pack) // uint32(p.packs.per_sequence)
        own = at(p.sequences, sequence, first_row, p.q_len, p.kv_len)
        head = int32(uint32(pack) - sequence * uint32(p.packs.per_sequence))
        pack = number(own, pack, head)
        s = of_sequence(p, own)
        end_key = s.kv_len
        if HIDES_LAST:
            end_key = end_seen(s, int32(min(int32(first_row + head_rows(p.packs)), s.q_len) - 1))
        first = int32(0)
        if HIDES_FIRST:
            first = int32(uint32(first_seen(s, first_row)) // uint32(BC))
        return RowTile(pack, head, first_row, own, first, tiles_of(end_key))

    # The tiles of keys that all rows of a tile see all of: from the first to before the end. `p`: of the sequence.
    @cuda.jit(device=True, forceinline=True)
    def whole_tiles(tile, p):
        first, end = int32(0), int32(tile.end - 1)  # the last tile of keys may not be full
        if HIDES_LAST:
            end = int32(uint32(end_seen(p, tile.first_row)) // uint32(BC))
        if HIDES_FIRST:
            last_row = int32(min(int32(tile.first_row + head_rows(p.packs)), p.q_len) - 1)
            first = tiles_of(first_seen(p, last_row))
        return first, end

    return SimpleNamespace(
        IS_RAGGED=varlen,
        head_rows=head_rows,
        index_of=index_of,
        row_tile=row_tile,
        whole_tiles=whole_tiles,
        row=sequences.row,
        key=sequences.key,
    )
