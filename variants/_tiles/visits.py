"""Masks under which what a row sees is no run of keys: which tiles of keys a block of rows visits, and what that costs.

A launch of its own, list_visits.cu, lists for each block of rows the tiles of which some row sees a key, once for all
heads and sequences that see alike; kernels visit those. Of a tile that some of the rows do not see whole (it is mixed)
a block reads the mask again, and keeps a bit for each row and key. _features/tile_order.cuh and numba_tile_order.py are
how kernels do it, and a mask's rule says which pairs it lets through: block_rule.py, flashmask_rule.py.

Blocks that own keys, as in the backward pass, visit tiles of rows. Their lists are mirrored: rows and keys are
exchanged in the lists, not in the mask, whose rule stays the same.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from harness import Buffer, Launch, Problem
from variants._features import FOLDER, Feature, declarations, has_spans, limits, mirrored_limits
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
LISTS, MIRRORED_LISTS = "visits", "visits_of_keys"
"""Names of the lists. `LISTS`, (sequences, L, T_r, 1 + T_c): the number of tiles that a row block visits, then their
entries. `MIRRORED_LISTS`, (sequences, L, T_c, 1 + T_r): the same of blocks that own keys and visit tiles of rows."""
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


def numba_rule(problem: Problem, tile: Sizes, mirrored: bool = False) -> Any:
    """Return the `NumbaRule` of a mask in which a row does not see a run of keys; None for other masks.

    `mirrored`: for blocks that own keys.
    """
    rule = rule_of(problem, tile)
    if rule is None or not mirrored:
        return None if rule is None else rule.in_numba
    from variants._features.numba_tile_order import mirrored_rule

    return mirrored_rule(rule.in_numba, tile.Bc)


def _cuda_type(rule: Rule, mirrored: bool) -> str:
    return f"Mirrored<{rule.cuda_type}>" if mirrored else rule.cuda_type


def _sides(tile: Sizes, mirrored: bool) -> Tile:
    """The tile as kernels are compiled with it: what a block owns, and what it visits."""
    return Tile(Br=tile.Bc, Bc=tile.Br) if mirrored else Tile(tile.Br, tile.Bc)


def words(tile: Sizes) -> int:
    """Return the number of 32-bit words of visibility bits per row of a tile."""
    return int(blocks(tile.Bc, LANES))


def noted_bytes(problem: Problem, tile: Sizes) -> int:
    """Return the bytes of a mixed tile's visibility bits in shared memory; 0 if rows see runs."""
    return 0 if problem.mask.is_run else INT32_BYTES * int(blocks(tile.Br, THREADS_Y)) * THREADS_Y * words(tile)


def tile_order(problem: Problem, tile: Sizes, mirrored: bool = False) -> Feature:
    """Return which tiles of keys a block of rows visits, as a type of kernels.

    `mirrored`: which tiles of rows a block of keys visits.
    """
    files, rule = ((FOLDER, "limits.cuh"),), rule_of(problem, tile)
    if rule is None:
        return Feature("TileOrder", "AllTiles", (), (*files, (FOLDER, "tile_order.cuh")))
    visits = Visits(Schedule(problem, tile), mirrored)
    sequences, lists, _, _ = visits.shape
    argument = (visits.name, np.int32(lists * (sequences > 1)), np.int32(lists > 1), rule.arguments)
    return Feature(
        "TileOrder",
        f"ListedTiles<{_cuda_type(rule, mirrored)}>",
        argument,
        (*files, (FOLDER, rule.file), (FOLDER, "tile_order.cuh")),
    )


def cuda_listing(problem: Problem, tile: Sizes, mirrored: bool = False) -> tuple[Any, ...]:
    """Return the CUDA kernel that lists tiles, and those of the rule; none if rows see runs.

    `mirrored`: for blocks that own keys.
    """
    from variants._tiles.rawkernel import raw_kernel, tile_sizes

    rule = rule_of(problem, tile)
    if rule is None:
        return ()
    rule_files = (FOLDER, rule.file), *(((FOLDER, "tile_order.cuh"),) if mirrored else ())
    chosen = limits(problem), Feature("Rule", _cuda_type(rule, mirrored), (), rule_files)
    files, using = declarations(chosen)
    options = tile_sizes(_sides(tile, mirrored))
    list_visits = raw_kernel("_tiles", "list_visits", options, files, using, file="list_visits.cu")
    return (list_visits, *rule.cuda_kernels)


def numba_listing(problem: Problem, tile: Sizes, mirrored: bool = False) -> tuple[Any, ...]:
    """Return the Numba kernel that lists tiles, and those of the rule; none if rows see runs.

    `mirrored`: for blocks that own keys.
    """
    from variants._tiles.numba_visits import list_visits_kernel

    rule = rule_of(problem, tile)
    if rule is None:
        return ()
    of_rule = numba_rule(problem, tile, mirrored)
    list_visits = list_visits_kernel(_sides(tile, mirrored), has_spans(problem), of_rule)
    return (list_visits, *rule.numba_kernels)


class Visits:
    """The tile lists of a problem: their launches, buffers and bytes.

    `mirrored`: of blocks that own keys. `visited` is the same of both.
    """

    def __init__(self, schedule: Schedule, mirrored: bool = False) -> None:
        self._schedule = schedule
        self._mirrored = mirrored
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
    def name(self) -> str:
        """Name of the lists."""
        return MIRRORED_LISTS if self._mirrored else LISTS

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the lists: sequences with their own lists, lists per sequence, blocks, entries per list."""
        assert self._rule is not None
        of_rows, of_keys = len(self._schedule.first_rows), len(self._schedule.first_keys)
        owners, tiles = (of_keys, of_rows) if self._mirrored else (of_rows, of_keys)
        return self._sequences, self._rule.lists, owners, 1 + tiles

    def launches(self, kernels: Sequence[Any]) -> tuple[Launch, ...]:
        """Return the launches before the kernel that visits tiles, with kernels of `cuda_listing` or its twin.

        Without the rule's own launches if only the first of them is given.
        """
        if self._rule is None:
            return ()
        p = self._problem
        sequences, lists, owners, _ = self.shape
        lengths, feature = (np.int32(p.q_len), np.int32(p.kv_len)), limits(p)
        if self._mirrored:
            lengths, feature = lengths[::-1], mirrored_limits(p)
        args = (self.name, *lengths, feature.argument, self._rule.arguments)
        list_visits, *of_rule = kernels
        block = (THREADS_X, LANES * LISTING_WARPS // THREADS_X)
        listing = Launch(list_visits, (owners, lists, sequences), block, args)
        return (*(self._rule.launches(tuple(of_rule)) if of_rule else ()), listing)

    @property
    def list_buffers(self) -> tuple[Buffer, ...]:
        """The lists."""
        return () if self._rule is None else (Buffer(self.name, self.shape, "int32"),)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The lists, and the buffers of the rule."""
        return () if self._rule is None else (*self.list_buffers, *self._rule.buffers)

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
        visited = self.visited
        lists = visited.shape[1]
        # Heads that share a list, as they are counted through the batch.
        by_list = both.reshape(len(both), -1, lists, both.shape[-1])
        of_keys = int((visited.sum(axis=2)[:, None] * by_list).sum())
        alike = p.batch * p.heads // (len(visited) * lists)
        reads = (1 + reads_ahead) * s.owners + entry_reads * alike * int(visited.sum())
        mask_read, mask_written = self.mask_traffic(warps, reads, others)
        rule_read, rule_written = self.rule_traffic
        return of_keys + mask_read + rule_read, mask_written + rule_written

    def mask_traffic(self, warps: int, reads: int, others: int = 0) -> tuple[int, int]:
        """Bytes read of lists and of the mask, and bytes written of lists, without the rule's own launches.

        See `mask_bytes`.
        """
        if self._rule is None:
            return 0, 0
        listing_read, listing_written = self._listing
        return self.mask_bytes(warps, reads, others) + listing_read, listing_written

    def mask_bytes(self, warps: int, reads: int, others: int = 0) -> int:
        """Bytes that a kernel reads of lists and of the mask, which it takes notes of once per query head and tile.

        Each of a block's warps reads elements of lists `reads` times in all, and so do `others`, who take no notes.
        """
        if self._rule is None:
            return 0
        visited, all_seen, p = self.visited, self._rule.seen[1], self._problem
        alike = p.batch * p.heads // (len(visited) * visited.shape[1])
        of_notes = alike * int(((visited & ~all_seen) * self._rule.note_bytes(warps)).sum())
        return of_notes + SECTOR_BYTES * (warps + others) * reads

    @property
    def rule_traffic(self) -> tuple[int, int]:
        """Bytes that the rule's own launches read and write."""
        return (0, 0) if self._rule is None else self._rule.traffic

    @functools.cached_property
    def looked_at(self) -> Booleans:
        """(S, T_r, T_c): whether a tile has keys of the run that the rest of the mask lets the block's rows see."""
        s = self._schedule
        tiles = np.arange(len(s.first_keys))
        looked_at: Booleans = (s.first_tiles[..., None] <= tiles) & (tiles < s.end_tiles[..., None])
        return looked_at

    @functools.cached_property
    def visited(self) -> Booleans:
        """(S, L, T_r, T_c): which tiles of keys each block of rows visits."""
        looked_at: Booleans = self.looked_at[:, None]
        return looked_at if self._rule is None else looked_at & self._rule.seen[0]

    @property
    def _listing(self) -> tuple[int, int]:
        """Bytes read and written by the launch that lists tiles."""
        assert self._rule is not None
        sequences, lists, of_list, room = self.shape
        alike = sequences // len(self.looked_at)
        looks = alike * int((self.looked_at[:, None] * self._rule.look_bytes).sum())
        owners = sequences * lists * of_list
        limit_bytes = 2 * SECTOR_BYTES * LISTING_WARPS * owners if has_spans(self._problem) else 0

        def per_list(each: np.ndarray) -> np.ndarray:
            each = each.swapaxes(2, 3) if self._mirrored else each
            return np.broadcast_to(each, (sequences, lists, *each.shape[2:])).reshape(owners, each.shape[3])

        visited, within = per_list(self.visited), per_list(self.looked_at[:, None])
        before = np.concatenate([np.zeros((owners, 1), np.int64), np.cumsum(visited, axis=1)], axis=1)
        first = within.argmax(axis=1)
        end = first + within.sum(axis=1)
        own = np.arange(owners)
        written = (
            SECTOR_BYTES * owners
        )  # how many tiles; those that warps have looked at together are put there at once
        for tile in range(0, int(np.max(end - first, initial=0)), LISTING_WARPS):
            begin, stop = (before[own, np.minimum(first + each, end)] for each in (tile, tile + LISTING_WARPS))
            written += int(run_bytes(own * room + 1 + begin, stop - begin, INT32_BYTES).sum())
        return looks + limit_bytes, written
