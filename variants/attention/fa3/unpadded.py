"""The claim of FlashAttention-3 on unpadded sequences.

Boxes of Q, K and V that reach behind the last row of a sequence bring rows of the next one, which count as its own do,
and zeros only behind the last row of all. A box of O that would reach there is not stored: a warpgroup's lanes store
its rows, 16 bytes each. Each block's producer visits all sequences `PASSES` times, to find out which have the tiles of
rows that it takes.
"""

from __future__ import annotations

import numpy as np

from harness import Problem, Traffic
from variants._features import sequence_extents, sink_bytes, term_bytes
from variants._hopper import (
    MULTIPROCESSORS,
    PASSES,
    PIECE_BYTES,
    PIECE_ELEMENTS,
    ROWS_PER_REQUEST,
    WARPGROUP_ROWS,
    WarpgroupTile,
    packed_heads,
    tensor_bytes,
    zero_bytes,
)
from variants._tiles import blocks
from variants._tiles.schedule import FLOAT32_BYTES, Schedule, schedules
from variants._tiles.sectors import LANES, SECTOR_BYTES, Integers
from variants._tiles.visits import Visits
from variants.attention.fa3.tile import head_tile


def claim_of_sequences(problem: Problem, tile: WarpgroupTile) -> Traffic:
    """Bytes of all sequences, at the `sectors` level."""
    p, packed = problem, packed_heads(problem)
    own = schedules(p, head_tile(p, tile))
    read_bytes, write_bytes = (sum(each) for each in zip(*(_claim_of(schedule, tile) for schedule in own)))
    count, _ = sequence_extents(p)
    row_tiles = p.heads // packed * sum(len(schedule.first_rows) for schedule in own)
    # The producer reads how many rows a sequence has each time it passes over it, and for each tile of its rows. It and
    # each warp of the consumers read where a tile's rows and keys begin and end.
    lengths = PASSES * count * min(row_tiles, MULTIPROCESSORS) + row_tiles
    starts = SECTOR_BYTES * (2 * lengths + 4 * (1 + 4 * tile.consumers) * row_tiles)
    counter_bytes = SECTOR_BYTES * row_tiles
    return Traffic(read_bytes + starts + counter_bytes, write_bytes + counter_bytes)


def _claim_of(schedule: Schedule, tile: WarpgroupTile) -> tuple[int, int]:
    """Bytes read and written for the tiles of rows of one sequence, without where it begins."""
    p, packed = schedule.problem, packed_heads(schedule.problem)
    head_rows = tile.Br // packed
    first_rows, first_keys = (
        before + first
        for before, first in (
            (schedule.rows_before, schedule.first_rows),
            (schedule.keys_before, schedule.first_keys),
        )
    )
    rows = np.minimum(head_rows, p.q_len - first_rows)
    q_bytes = tensor_bytes(p, "Q", first_rows, rows) + zero_bytes(rows, head_rows, p.head_dim)
    keys = np.minimum(tile.Bc, p.kv_len - first_keys)
    tile_bytes = sum(tensor_bytes(p, name, first_keys, keys) for name in "KV")
    tile_bytes = tile_bytes + 2 * zero_bytes(keys, tile.Bc, p.head_dim)
    tile_bytes = np.repeat(tile_bytes, p.group // packed, axis=0)[None]
    visits, warps = Visits(schedule), 4 * tile.consumers
    keys_read, _ = visits.traffic(warps, 1, key_and_value_bytes=tile_bytes, others=1)
    packs = p.heads // packed
    read_bytes = int(q_bytes.sum()) + keys_read
    read_bytes += term_bytes(p, 2 * warps * packs * int((visits.counts > 0).sum()))
    read_bytes += sink_bytes(p, 2 * warps * packs * len(first_rows))
    return read_bytes, _output_bytes(schedule) + _lse_bytes(schedule)


def _output_bytes(schedule: Schedule) -> int:
    """Bytes of writing O: boxes of a warpgroup's rows, and by lanes what is less than a box."""
    p, packed = schedule.problem, packed_heads(schedule.problem)
    head_rows = WARPGROUP_ROWS // packed
    whole, rest = divmod(schedule.q_len, head_rows)
    total = int(tensor_bytes(p, "O", schedule.rows_before, whole * head_rows).sum())
    if rest == 0:
        return total
    tensor = p.tensor("O")
    _, of_head, of_row, _ = tensor.strides
    pieces = p.head_dim // PIECE_ELEMENTS
    unit = np.arange(WARPGROUP_ROWS * pieces)
    mine, piece = np.divmod(unit, pieces)
    row = mine % head_rows
    for pack in range(p.heads // packed):
        head = pack * packed + mine // head_rows
        element = head * of_head + (schedule.rows_before + whole * head_rows + row) * of_row + piece * PIECE_ELEMENTS
        total += _distinct_sectors(unit // LANES, element * (PIECE_BYTES // PIECE_ELEMENTS), row < rest)
    return total


def _lse_bytes(schedule: Schedule) -> int:
    """Bytes of writing lse: a request is 8 of a warpgroup's rows, which lie in one head or in several of its pack."""
    p, packed = schedule.problem, packed_heads(schedule.problem)
    head_rows = WARPGROUP_ROWS // packed
    tiles = np.arange(blocks(schedule.q_len, head_rows))[:, None, None] * head_rows
    heads = np.arange(p.heads).reshape(-1, 1, packed, 1)
    rows = np.broadcast_to(tiles + np.arange(head_rows), (p.heads // packed, len(tiles), packed, head_rows))
    elements = heads * p.q_len + schedule.rows_before + rows
    request = np.arange(elements.size) // ROWS_PER_REQUEST
    return _distinct_sectors(request, elements.reshape(-1) * FLOAT32_BYTES, rows.reshape(-1) < schedule.q_len)


def _distinct_sectors(request: Integers, byte: Integers, moved: np.ndarray) -> int:
    """Bytes of the distinct sectors of each request, of the lanes that move something."""
    pairs = np.stack([request[moved], byte[moved] // SECTOR_BYTES])
    return SECTOR_BYTES * int(np.unique(pairs, axis=1).shape[1])
