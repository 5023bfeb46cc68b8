"""Detects whether the warps of a cluster spin, which means that they wait in loops for another block.

A warp that spins on a flag has the same state in every iteration: its registers, and the locations of its lanes. From
time to time the state of all warps at the end of a round is stored and compared with that of the following rounds.
Loops that count or back off are not detected; their clusters are suspended after `PATIENCE_STEPS`.

The detection is heuristic and affects only the order of blocks: a cluster that is considered to spin continues later.
"""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.abi.context import CLUSTER_SIZE, WARP_BYTES, WARP_COUNT
from harness.emulator.abi.raw_memory import load32, load64
from harness.emulator.runtime.clusters import warp_at

FIRST_LOOK = 1 << 16
"""Number of instructions of a cluster's warps before its state is first stored; the interval doubles from time to
time."""
SHORT_TURN = 1 << 12
"""Instructions per turn of a warp, and until the state is stored, in a cluster that was suspended before: it probably
spins again, or others wait for it."""
WAITING_TURN = 1 << 9
"""The same in a cooperative launch, whose blocks are expected to wait for each other, and for the sanitizer in one of
whose clusters has waited."""
ROUNDS_COMPARED = 4
"""Number of rounds compared. A round is a turn of each warp; at barriers two states may alternate."""


def state_of(ctx: int) -> int:
    """A hash of the state of the cluster's warps: registers and locations of all that have not ended."""
    found = 0
    size = load64(ctx + WARP_BYTES)
    for rank in range(load64(ctx + CLUSTER_SIZE)):
        for index in range(load64(ctx + WARP_COUNT)):
            warp = warp_at(ctx, rank, index)
            status = load32(warp + at.STATUS)
            found = ((found ^ status) * 0x5851F42D4C957F2D + 1) & 0x7FFFFFFFFFFFFFFF
            if status != at.EXITED:
                for place in range(at.PCS, at.ALIVE, 8):
                    found = ((found ^ load64(warp + place)) * 0x5851F42D4C957F2D + 1) & 0x7FFFFFFFFFFFFFFF
                for place in range(at.REGISTERS, size, 8):
                    found = ((found ^ load64(warp + place)) * 0x5851F42D4C957F2D + 1) & 0x7FFFFFFFFFFFFFFF
    return found
