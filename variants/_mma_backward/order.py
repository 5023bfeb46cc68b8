"""In which order blocks that own keys add their parts of dQ to memory. The CUDA types are in order.cuh."""

from __future__ import annotations

import numpy as np

from harness import Buffer, Problem
from variants._features import Feature, has_spans
from variants._tiles import blocks
from variants._tiles.backward import BackwardSchedule
from variants._tiles.sectors import SECTOR_BYTES

TURNS = "dQ_turns"
"""Name of the buffer of the tiles of keys whose turn it is."""
TURN_ROWS = 64
"""Rows of dQ that have one."""


def order(is_fixed: bool) -> Feature:
    """Return whether tiles of keys are added one after the other, or in any order."""
    chosen = ("OrderOfKeys", (TURNS,)) if is_fixed else ("AnyOrder", ())
    return Feature("Order", *chosen, (("_mma_backward", "order.cuh"),))


def turns(problem: Problem) -> Buffer:
    """Return the buffer of the tiles whose turn it is: int32, (batch, heads, tiles of `TURN_ROWS`)."""
    p = problem
    return Buffer(TURNS, (p.batch, p.heads, blocks(p.q_len, TURN_ROWS)), "int32")


def turn_bytes(schedule: BackwardSchedule) -> tuple[int, int, int]:
    """Return bytes of turns at the `sectors` level: (written before, read, written by the blocks that own keys).

    A block that waits reads its turn once, if it does not come too early. The first tile of keys of a row block does
    not wait. Where the mask is no band, a block also reads which rows see two keys of the tile before.
    """
    p, visits = schedule.problem, schedule.visits
    heads = p.batch * p.heads // len(visits)
    limits = 2 * p.kv_heads_count * int((schedule.key_visits[:, 1:] > 0).sum()) if has_spans(p) else 0
    awaited = heads * int(np.maximum(visits - 1, 0).sum()) + limits
    begun = p.batch * p.heads * blocks(p.q_len, TURN_ROWS)
    return SECTOR_BYTES * begun, SECTOR_BYTES * awaited, SECTOR_BYTES * heads * int(visits.sum())
