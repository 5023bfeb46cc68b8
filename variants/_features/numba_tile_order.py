"""TileOrder: which tiles of keys a block of rows visits, and which row sees which key of a tile.

The CUDA twin is tile_order.cuh: same names. A kernel's parameter `order` is empty (`AllTiles`), or a tuple of the
lists, lists_per_sequence, lists_per_head (0 where all have the same) and the mask's rule (`ListedTiles`).

    tiles = order.of_block(argument, block, seen.first_key, seen.end_key, q_len, kv_len)
    next = order.first(tiles)
    while order.exists(next):
        tile = next                               # its keys begin at tile.first_key
        next = order.after(tiles, tile)
        pairs = order.pairs(tiles, tile, keys)    # called by all threads of the block
        if order.hides_some(pairs):
            order.sees(pairs, row, key)           # of the block and of the tile
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

from numba import cuda, int32, uint32

from variants._features.numba_limits import MASK, thread_of_block

ALL_LANES = 0xFFFFFFFF


class NumbaRule(NamedTuple):
    """Device functions of a mask's rule: numba_block_mask.py, numba_flashmask.py. Their first argument is the rule, a
    tuple, and the second the head, 0 where all heads have the same mask."""

    look_at_tile: Any
    """Returns whether rows see any of a tile's keys, and whether they see all."""
    KNOWN: int
    """Number of values that a lane stores per key."""
    get_to_know: Any
    """Loads these values."""
    sees: Any
    """Returns whether a row sees that key."""
    owns_keys: bool = False
    """Whether a block owns keys and visits tiles of rows. A tile is then looked at the other way round; the other
    functions get keys and rows of the mask all the same."""


@functools.cache
def mirrored_rule(rule: NumbaRule, own_keys: int) -> NumbaRule:
    """Return the rule for blocks that own so many keys and visit tiles of rows."""
    look_at_pairs = rule.look_at_tile

    @cuda.jit(device=True, forceinline=True)
    def look_at_tile(rule, head, tile, first_key, keys, first_row, rows):
        return look_at_pairs(rule, head, first_key // own_keys, first_row, rows, first_key, keys)

    return rule._replace(look_at_tile=look_at_tile, owns_keys=True)


class RunTile(NamedTuple):
    """A tile of a run of tiles."""

    first_key: Any
    end_key: Any
    """Of the run."""


class RunOfTiles(NamedTuple):
    """All tiles with a key that some row sees."""

    first_key: Any
    end_key: Any


class ListedTile(NamedTuple):
    """A tile of a list."""

    entry: Any
    """Twice the tile's number, plus one where the rule hides some of its keys from some rows."""
    place: Any
    """Of the entry in the list."""
    tiles: Any
    """Number of tiles in the list."""
    first_key: Any


class ListOfTiles(NamedTuple):
    """A block's list of tiles, which begins with their number."""

    entries: Any
    tiles: Any
    rule: Any
    rule_head: Any
    block: Any


class Pairs(NamedTuple):
    """Which row of a block sees which key of a tile: a bit each, if rows see different ones."""

    bits: Any
    mixed: Any


def _all_tiles(keys: int) -> dict[str, Any]:
    """All tiles with a key that some row sees, where what a row sees is a run of keys."""
    BC = keys

    @cuda.jit(device=True, forceinline=True)
    def of_block(order, block, first_key, end_key, q_len, kv_len):
        return RunOfTiles(first_key, end_key)

    @cuda.jit(device=True, forceinline=True)
    def first(tiles):
        return RunTile(tiles.first_key // BC * BC, tiles.end_key)

    @cuda.jit(device=True, forceinline=True)
    def after(tiles, tile):
        return RunTile(tile.first_key + BC, tile.end_key)

    @cuda.jit(device=True, forceinline=True)
    def exists(tile):
        return tile.first_key < tile.end_key

    # Limits alone hide keys.
    @cuda.jit(device=True, forceinline=True)
    def pairs(tiles, tile, keys):
        return ()

    @cuda.jit(device=True, forceinline=True)
    def hides_some(pairs):
        return False

    @cuda.jit(device=True, forceinline=True)
    def sees(pairs, row, key):
        return True

    return {
        "of_block": of_block,
        "first": first,
        "after": after,
        "exists": exists,
        "pairs": pairs,
        "hides_some": hides_some,
        "sees": sees,
    }


def _listed_tiles(rows: int, keys: int, threads: int, rule: NumbaRule) -> dict[str, Any]:
    """Tiles that are listed ahead, by list_visits_kernel: masks under which what a row sees is no run of keys.

    Of a tile that rows see in part, the block computes which row sees which key, a bit each, into shared memory.
    """
    BC, KNOWN, get_to_know, rule_sees = keys, rule.KNOWN, rule.get_to_know, rule.sees
    OWNS_KEYS = rule.owns_keys
    # A bit for each of the mask's rows and keys, whichever of them the block owns.
    of_rows, of_keys = (keys, rows) if OWNS_KEYS else (rows, keys)
    WORDS, ROOM = -(-of_keys // 32), -(-of_rows // 16) * 16
    SHARE = ROOM * 32 // threads

    @cuda.jit(device=True, forceinline=True)
    def of_block(order, block, first_key, end_key, q_len, kv_len):
        lists, per_sequence, per_head, rule = order
        entries = lists[block.batch if per_sequence else 0, block.head if per_head else 0, block.number]
        return ListOfTiles(entries, entries[0], rule, block.head if per_head else 0, block)

    @cuda.jit(device=True, forceinline=True)
    def at(tiles, place):
        entry = int32(0)
        if place < tiles.tiles:
            entry = tiles.entries[(1 + place) & MASK]
        return ListedTile(entry, place, tiles.tiles, (entry >> 1) * BC)

    @cuda.jit(device=True, forceinline=True)
    def first(tiles):
        return at(tiles, int32(0))

    @cuda.jit(device=True, forceinline=True)
    def after(tiles, tile):
        return at(tiles, int32(tile.place + 1))

    @cuda.jit(device=True, forceinline=True)
    def exists(tile):
        return tile.place < tile.tiles

    # Each warp computes the bits of SHARE rows, a key per lane. Rows that the tile has room for after the last are as
    # the last.
    @cuda.jit(device=True, forceinline=True)
    def compute_bits(bits, tiles, tile, keys):
        t = thread_of_block() & MASK
        warp, lane = t // 32, t % 32
        of = cuda.local.array((WORDS, KNOWN), int32)
        first_row, last_row, first_key, last_key = tiles.block.first_row, tiles.block.rows - 1, tile.first_key, keys - 1
        if OWNS_KEYS:
            first_row, last_row, first_key, last_key = first_key, last_key, first_row, last_row
        for w in range(WORDS):
            get_to_know(of[w], tiles.rule, tiles.rule_head, first_key + min(32 * w + lane, last_key))
        for row in range(warp * SHARE, warp * SHARE + SHARE):
            for w in range(WORDS):
                row_of_head = first_row + min(row, last_row)
                seen = cuda.ballot_sync(ALL_LANES, rule_sees(of[w], tiles.rule, tiles.rule_head, row_of_head))
                if lane == 0:
                    bits[row & MASK, w] = seen

    @cuda.jit(device=True, forceinline=True)
    def pairs(tiles, tile, keys):
        bits = cuda.shared.array((ROOM, WORDS), uint32)
        mixed = tile.entry & 1 != 0
        if mixed:
            compute_bits(bits, tiles, tile, keys)
            cuda.syncthreads()
        return Pairs(bits, mixed)

    @cuda.jit(device=True, forceinline=True)
    def hides_some(pairs):
        return pairs.mixed

    @cuda.jit(device=True, forceinline=True)
    def sees(pairs, owned, visited):
        row, key = owned, visited
        if OWNS_KEYS:
            row, key = visited, owned
        return (pairs.bits[row & MASK, (key >> 5) & MASK] >> uint32(key & 31)) & uint32(1) != 0

    return {
        "of_block": of_block,
        "first": first,
        "after": after,
        "exists": exists,
        "pairs": pairs,
        "hides_some": hides_some,
        "sees": sees,
        "compute_bits": compute_bits,
    }


@functools.cache
def numba_tile_order(rule: NumbaRule | None, rows: int, keys: int, threads: int = 128) -> SimpleNamespace:
    """Device functions for blocks of `rows` rows, tiles of `keys` keys and blocks of so many threads.

    Without a `rule` all tiles are visited.
    """
    return SimpleNamespace(**(_all_tiles(keys) if rule is None else _listed_tiles(rows, keys, threads, rule)))
