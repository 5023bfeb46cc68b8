"""Which keys a block has, and which of them the rows of a lane see: what `keys` and `seen` are to
numba_split_attention.py. The CUDA twin is runs_of_rows.cuh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from numba import cuda, int32, uint64

from variants._mma.numba_tiles import STORED_BYTES


@dataclass(frozen=True)
class KeyFunctions:
    """Device functions of the block's `keys`, a named tuple that has the end of those that a row sees as `end`."""

    first: Callable
    """(keys): the first key that a row sees."""
    skipped: Callable
    """(keys, key): how many keys of the tile that begins with `key` are before the first."""
    first_tile: Callable
    """(keys, warp): the first key of the warp's first tile."""
    tile_after: Callable
    """(keys, key): the first key of the warp's next tile."""
    K: Callable
    """(keys, key): where K begins in memory; and below, V."""
    V: Callable


class KeysOfHead(NamedTuple):
    """Keys of one head from `first` to before `end`; tiles are counted from `begin` on, which is at most `first`."""

    K_head: Any
    """Address of the head's first row of K; and below, of V."""
    V_head: Any
    begin: Any
    first: Any
    end: Any


def keys_of_head(D: int, first_tile: Callable, tile_after: Callable) -> KeyFunctions:
    """The functions of `KeysOfHead` for rows of D elements, with these two, which divide tiles among the warps."""

    @cuda.jit(device=True, forceinline=True)
    def first(keys):
        return keys.first

    @cuda.jit(device=True, forceinline=True)
    def skipped(keys, key):
        return int32(keys.first - key)

    @cuda.jit(device=True, forceinline=True)
    def K(keys, key):
        return keys.K_head + uint64(key) * uint64(D * STORED_BYTES)

    @cuda.jit(device=True, forceinline=True)
    def V(keys, key):
        return keys.V_head + uint64(key) * uint64(D * STORED_BYTES)

    return KeyFunctions(first, skipped, first_tile, tile_after, K, V)


@dataclass(frozen=True)
class SeenFunctions:
    """Device functions of `seen`, a named tuple: which keys the rows of a lane see."""

    at: Callable
    """(seen, key): the same, counted from that key."""
    sees: Callable
    """(seen, i, k): whether row g (i = 0) or g + 8 (i = 1) sees key k."""
    all_see: Callable
    """(seen, first, end): whether all rows of the block see these keys."""


class RunsOfRows(NamedTuple):
    """Rows g and g + 8 of the lane see keys from `from_0` and `from_1` to before `to_0` and `to_1`."""

    from_0: Any
    from_1: Any
    to_0: Any
    to_1: Any
    from_for_all: Any
    """All rows of the block see keys from here to before `to_for_all`."""
    to_for_all: Any


@cuda.jit(device=True, forceinline=True)
def runs_at(seen, key):
    from_0, from_1 = int32(seen.from_0 - key), int32(seen.from_1 - key)
    return RunsOfRows(
        from_0, from_1, int32(seen.to_0 - key), int32(seen.to_1 - key), seen.from_for_all, seen.to_for_all
    )


@cuda.jit(device=True, forceinline=True)
def run_sees(seen, i, k):
    return k >= (seen.from_0 if i == 0 else seen.from_1) and k < (seen.to_0 if i == 0 else seen.to_1)


@cuda.jit(device=True, forceinline=True)
def runs_all_see(seen, first, end):
    return first >= seen.from_for_all and end <= seen.to_for_all


RUNS_OF_ROWS = SeenFunctions(runs_at, run_sees, runs_all_see)
