"""Masks under which what a row sees is no run of keys: which tiles of keys a block of rows visits, and what that costs.

A launch of its own, list_visits.cu, lists for each block of rows the tiles of which some row sees a key, once for all
heads and sequences that see alike; kernels visit those. Of a tile that some of the rows do not see whole (it is mixed)
a block reads the mask again, and keeps a bit for each row and key. _features/tile_order.cuh and numba_tile_order.py are
how kernels do it, and a mask's rule says which pairs it lets through: block_rule.py, flashmask_rule.py.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from harness import Buffer, Launch, Problem
from variants._features import FOLDER, Feature, declarations, has_spans, limits
from variants._tiles import THREADS_X, THREADS_Y, Tile, blocks
from variants._tiles.block_rule import BlockRule
from variants._tiles.flashmask_rule import FlashMaskRule
from variants._tiles.schedule import INT32_BYTES, Schedule, Sizes
from variants._tiles.sectors import LANES, SECTOR_BYTES, Integers, run_bytes
from variants._tiles.tile_copies import TileCopy

FEATURES = ("blocks", "flashmask")
"""Features in `takes` of a variant whose kernels visit listed tiles, in addition to masks of runs."""
LISTING_WARPS = LANES
"""Warps per listing block: each checks one tile at a time, and each lane of one warp then adds a tile to the list."""
LISTS = "visits"
"""Name of the lists, (sequences, L, T_r, 1 + T_c): the number of tiles that a row block visits, then their entries."""
Booleans = np.ndarray


class Rule(Protocol):
    """A mask's rule if tiles are listed. Axes: L lists of a sequence, 1 or one per head; T_r blocks of rows; T_c tiles
    of keys."""

    file: str
    """Name of its CUDA file in _features/."""

    @property
    def cuda_type(self) -> str:
        """The type there."""

    @property
    def in_numba(self) -> Any:
        """The Numba twin of that file, a `NumbaRule`."""

    @property
    def lists(self) -> int:
        """L, the number of lists per sequence."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The rule as a kernel argument: the members of its type."""

    @property
    def cuda_kernels(self) -> tuple[Any, ...]:
        """CUDA kernels that run before tiles are listed."""

    @property
    def numba_kernels(self) -> tuple[Any, ...]:
        """Numba kernels that run before tiles are listed."""

    def launches(self, kernels: tuple[Any, ...]) -> tuple[Launch, ...]:
        """Launches of `cuda_kernels` or `numba_kernels`."""

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Buffers that these launches write."""

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes that these launches read and write."""

    @property
    def seen(self) -> tuple[Booleans, Booleans]:
        """(L, T_r, T_c) each: whether a block's rows see any of a tile's keys, and whether they see all."""

    @property
    def look_bytes(self) -> Integers:
        """(L, T_r, T_c): bytes of computing `seen`, once."""

    def note_bytes(self, warps: int) -> Integers:
        """(L, T_r, T_c): bytes read for a mixed tile's bits, if each of a block's warps computes those of some rows."""


def rule_of(problem: Problem, tile: Sizes) -> Rule | None:
    """The rule of a mask in which a row does not see a run of keys; None for other masks."""
    if problem.flashmask is not None:
        return FlashMaskRule(problem, tile)
    return None if problem.blocks is None else BlockRule(problem, tile)


def numba_rule(problem: Problem, tile: Sizes) -> Any:
    """Return the `NumbaRule` of a mask in which a row does not see a run of keys; None for other masks."""
    rule = rule_of(problem, tile)
    return None if rule is None else rule.in_numba


def words(tile: Sizes) -> int:
    """Return the number of 32-bit words of visibility bits per row of a tile."""
    return int(blocks(tile.Bc, LANES))


def noted_bytes(problem: Problem, tile: Sizes) -> int:
    """Return the bytes of a mixed tile's visibility bits in shared memory; 0 if rows see runs."""
    return 0 if problem.mask.is_run else INT32_BYTES * int(blocks(tile.Br, THREADS_Y)) * THREADS_Y * words(tile)


def tile_order(problem: Problem, tile: Sizes) -> Feature:
    """Return which tiles of keys a block of rows visits, as a type of kernels."""
    files, rule = ((FOLDER, "limits.cuh"),), rule_of(problem, tile)
    if rule is None:
        return Feature("TileOrder", "AllTiles", (), (*files, (FOLDER, "tile_order.cuh")))
    sequences, lists, _, _ = Visits(Schedule(problem, tile)).shape
    argument = (LISTS, np.int32(lists * (sequences > 1)), np.int32(lists > 1), rule.arguments)
    return Feature(
        "TileOrder",
        f"ListedTiles<{rule.cuda_type}>",
        argument,
        (*files, (FOLDER, rule.file), (FOLDER, "tile_order.cuh")),
    )


def cuda_listing(problem: Problem, tile: Sizes) -> tuple[Any, ...]:
    """Return the CUDA kernel that lists tiles, and those of the rule; none if rows see runs."""
    from variants._tiles.rawkernel import raw_kernel, tile_sizes

    rule = rule_of(problem, tile)
    if rule is None:
        return ()
    files, using = declarations((limits(problem), Feature("Rule", rule.cuda_type, (), ((FOLDER, rule.file),))))
    list_visits = raw_kernel("_tiles", "list_visits", tile_sizes(tile), files, using, file="list_visits.cu")
    return (list_visits, *rule.cuda_kernels)


def numba_listing(problem: Problem, tile: Sizes) -> tuple[Any, ...]:
    """Return the Numba kernel that lists tiles, and those of the rule; none if rows see runs."""
    from variants._tiles.numba_visits import list_visits_kernel

    rule = rule_of(problem, tile)
    if rule is None:
        return ()
    list_visits = list_visits_kernel(Tile(tile.Br, tile.Bc), has_spans(problem), rule.in_numba)
    return (list_visits, *rule.numba_kernels)


class Visits:
    """The tile lists of a problem: their launches, buffers and bytes."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._problem = schedule.problem
        self._rule = rule_of(schedule.problem, schedule.tile)

    @property
    def schedule(self) -> Schedule:
        """The tiles of the problem."""
        return self._schedule

    @property
    def _sequences(self) -> int:
        """Number of sequences with separate lists."""
        return self._problem.batch if has_spans(self._problem) else 1

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the lists: sequences with their own lists, lists per sequence, row blocks, entries per list."""
        assert self._rule is not None
        row_blocks, tiles = len(self._schedule.first_rows), len(self._schedule.first_keys)
        return self._sequences, self._rule.lists, row_blocks, 1 + tiles

    def launches(self, kernels: Sequence[Any]) -> tuple[Launch, ...]:
        """Return the launches before the kernel that visits tiles, with kernels of `cuda_listing` or its twin."""
        if self._rule is None:
            return ()
        p = self._problem
        sequences, lists, row_blocks, _ = self.shape
        args = (LISTS, np.int32(p.q_len), np.int32(p.kv_len), limits(p).argument, self._rule.arguments)
        list_visits, *of_rule = kernels
        block = (THREADS_X, LANES * LISTING_WARPS // THREADS_X)
        listing = Launch(list_visits, (row_blocks, lists, sequences), block, args)
        return (*self._rule.launches(tuple(of_rule)), listing)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The lists, and the buffers of the rule."""
        return () if self._rule is None else (Buffer(LISTS, self.shape, "int32"), *self._rule.buffers)

    @property
    def counts(self) -> Integers:
        """(S, L, T_r): how many tiles a block of rows visits."""
        if self._rule is None:
            return self._schedule.visits[:, None]
        counts: Integers = self.visited.sum(axis=-1)
        return counts

    def traffic(
        self,
        warps: int,
        entry_reads: int,
        *,
        copy: TileCopy | None = None,
        copy_of_V: TileCopy | None = None,
        reads_ahead: int = 0,
        key_and_value_bytes: Integers | None = None,
        others: int = 0,
    ) -> tuple[int, int]:
        """Bytes read of K, V and the mask, and bytes written of lists, at the `sectors` level, in all launches.

        A block of the kernel has so many warps; each reads how many tiles there are, each tile `entry_reads` times, and
        `reads_ahead` besides, and so do `others`, who take no notes. `key_and_value_bytes`: (S, heads that K_j and
        V_j come for, T_c); those of `copy`, or of loads of one element per lane, unless given. `copy_of_V` is that of V
        if its rows are not as long as those of K.
        """
        s, p = self._schedule, self._problem
        both = key_and_value_bytes
        if both is None:
            both = s.key_and_value_bytes_of_heads(copy, copy_of_V=copy_of_V)
        if self._rule is None:
            return int((s.key_visits[:, None] * both).sum()), 0
        visited, all_seen = self.visited, self._rule.seen[1]
        lists = visited.shape[1]
        # Heads that share a list, as they are counted through the batch.
        by_list = both.reshape(len(both), -1, lists, both.shape[-1])
        of_keys = int((visited.sum(axis=2)[:, None] * by_list).sum())
        alike = p.batch * p.heads // (len(visited) * lists)
        of_notes = alike * int(((visited & ~all_seen) * self._rule.note_bytes(warps)).sum())
        reads = (1 + reads_ahead) * s.owners + entry_reads * alike * int(visited.sum())
        of_lists = SECTOR_BYTES * (warps + others) * reads
        listing_read, listing_written = self._listing
        rule_read, rule_written = self._rule.traffic
        return of_keys + of_notes + of_lists + listing_read + rule_read, listing_written + rule_written

    @functools.cached_property
    def _looked_at(self) -> Booleans:
        """(S, T_r, T_c): whether a tile has keys of the run that the rest of the mask lets the block's rows see."""
        s = self._schedule
        tiles = np.arange(len(s.first_keys))
        looked_at: Booleans = (s.first_tiles[..., None] <= tiles) & (tiles < s.end_tiles[..., None])
        return looked_at

    @functools.cached_property
    def visited(self) -> Booleans:
        """(S, L, T_r, T_c): which tiles of keys each block of rows visits."""
        looked_at: Booleans = self._looked_at[:, None]
        return looked_at if self._rule is None else looked_at & self._rule.seen[0]

    @property
    def _listing(self) -> tuple[int, int]:
        """Bytes read and written by the launch that lists tiles."""
        assert self._rule is not None
        sequences, lists, row_blocks, room = self.shape
        alike = sequences // len(self._looked_at)
        looks = alike * int((self._looked_at[:, None] * self._rule.look_bytes).sum())
        owners = sequences * lists * row_blocks
        limit_bytes = 2 * SECTOR_BYTES * LISTING_WARPS * owners if has_spans(self._problem) else 0

        def per_list(each: np.ndarray) -> np.ndarray:
            return np.broadcast_to(each, (sequences, lists, *each.shape[2:])).reshape(owners, *each.shape[3:])

        visited = per_list(self.visited)
        before = np.concatenate([np.zeros((owners, 1), np.int64), np.cumsum(visited, axis=1)], axis=1)
        first, end = (per_list(each[:, None]) for each in (self._schedule.first_tiles, self._schedule.end_tiles))
        own = np.arange(owners)
        written = (
            SECTOR_BYTES * owners
        )  # how many tiles; those that warps have looked at together are put there at once
        for tile in range(0, int(np.max(end - first, initial=0)), LISTING_WARPS):
            begin, stop = (before[own, np.minimum(first + each, end)] for each in (tile, tile + LISTING_WARPS))
            written += int(run_bytes(own * room + 1 + begin, stop - begin, INT32_BYTES).sum())
        return looks + limit_bytes, written
