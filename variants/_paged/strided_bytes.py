"""Bytes of tiles of K and V whose rows lie where the strides of their pool say."""

from __future__ import annotations

import dataclasses

import numpy as np

from harness import PagedProblem
from variants._tiles import blocks
from variants._tiles.sectors import SECTOR_BYTES, Integers
from variants._tiles.tile_copies import LINE_BYTES, PAST_L1_BYTES, TileCopy


def element_copy(problem: PagedProblem) -> TileCopy:
    """Return how tiles are loaded, an element per lane, without asynchronous copies."""
    return TileCopy(problem.head_dim, problem.kv_itemsize_bytes, 1, pitch_bytes=0, asynchronous=False)


def depends_on_pages(problem: PagedProblem, copy: TileCopy) -> bool:
    """Whether bytes depend on which pages the table names: not all of them begin at the same byte of a sector.

    Copies that do not pass L1 cost whole lines, of which pages have to begin at the same byte.
    """
    lane_bytes = copy.elements_per_lane * copy.itemsize_bytes
    unit = LINE_BYTES if copy.asynchronous and lane_bytes == PAST_L1_BYTES else SECTOR_BYTES
    return any(problem.tensor(name).strides[0] * copy.itemsize_bytes % unit for name in "KV")


def pool_bytes(problem: PagedProblem, first: Integers, end: Integers, Bc: int, copy: TileCopy) -> Integers:
    """(kv_heads, ...): bytes of K and V of each head from key `first` to before `end`, arrays of one shape, once.

    They are brought on chip in tiles of `Bc` keys, of which a page has a whole number.
    """
    return _bytes_of("K", problem, first, end, Bc, copy) + _bytes_of("V", problem, first, end, Bc, copy)


def _bytes_of(name: str, problem: PagedProblem, first: Integers, end: Integers, Bc: int, copy: TileCopy) -> Integers:
    tensor, d, size = problem.tensor(name), problem.head_dim, problem.page_size
    _, of_head, of_row, _ = tensor.strides
    strided = dataclasses.replace(copy, row_stride_bytes=of_row * copy.itemsize_bytes)
    heads = tensor.first + of_head * np.arange(problem.kv_heads, dtype=np.int64).reshape(-1, *(1,) * first.ndim)

    def of_tile(first_key: Integers, begin: Integers, stop: Integers) -> Integers:
        """Bytes of keys `begin` to before `stop` of the tile that begins with `first_key`."""
        start = heads + first_key % size * of_row
        return strided.bytes(start, np.maximum(stop - first_key, 0) * d, np.maximum(begin - first_key, 0) * d)

    # What is left of a tile that does not begin with `first`, whole tiles by their place in a page, and the last tile.
    end = np.maximum(first, end)
    first_tile, first_whole = first // Bc * Bc, blocks(first, Bc)
    rest_end = np.minimum(end, first_whole * Bc)
    end_whole = np.maximum(first_whole, end // Bc)
    total = of_tile(first_tile, first, rest_end)
    per_page = size // Bc
    for place in range(per_page):
        count = blocks(end_whole - place, per_page) - blocks(first_whole - place, per_page)
        at = np.full_like(first, place * Bc)
        total = total + count * of_tile(at, at, at + Bc)
    last = end_whole * Bc
    return total + of_tile(last, np.minimum(last, end), end)
