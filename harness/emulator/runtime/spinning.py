"""Whether the warps of a cluster spin: wait in loops for what another block has to do.

A warp that spins on a flag is, loop after loop, in the very same state: its registers, and where its lanes are. Now and
then the state of all warps at the end of a round is remembered, and held against that of the rounds behind it. Loops
that count or back off are not found so: they are suspended after `PATIENCE_STEPS`.

It is a guess, from which only the order of blocks follows: who is taken to spin goes on later.
"""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.abi.context import CLUSTER_SIZE, WARP_BYTES, WARP_COUNT
from harness.emulator.abi.raw_memory import load32, load64
from harness.emulator.runtime.clusters import warp_at

FIRST_LOOK = 1 << 16
"""Instructions of a cluster's warps until its state is remembered; from time to time it takes twice as many."""
SHORT_TURN = 1 << 12
"""Of a warp, and until the first look, in a cluster that was suspended before: it will spin again, or it is awaited."""
ROUNDS_COMPARED = 4
"""A round is a turn of each warp. At barriers two rounds may alternate."""


def state_of(ctx: int) -> int:
    """A number that tells states of the cluster's warps apart: registers and places of all that have not ended."""
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
