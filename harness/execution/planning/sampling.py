"""Finds the blocks that compute single entries of a huge problem, from the grids of two problems that differ by one.

A launch whose grid has as many blocks along one axis as there are entries, or a multiple, is sampled: the blocks of an
entry lie next to each other. A launch whose grid does not depend on the number of entries runs as a whole, unless it
works on them nevertheless, as a persistent kernel does.
"""

from __future__ import annotations

import dataclasses

from harness.model.block_sample import BlockSample
from harness.model.plan import Launch, Plan, Reshaped, in_three_dimensions, leaves
from harness.model.spread import Spread
from harness.model.tensor_map import TensorMap


def sampled(plan: Plan, fewer: Plan, spread: Spread) -> Plan:
    """Return the plan of the huge problem with the blocks of the used entries selected in each launch.

    `fewer` is the variant's plan for `spread.fewer`. If blocks cannot be selected, `Plan.unsampled` says why.
    """
    assert spread.fewer is not None
    if len(plan.launches) != len(fewer.launches):
        return dataclasses.replace(plan, unsampled="its launches change with the number of sequences")
    here, there = plan.all_buffers(spread.problem), fewer.all_buffers(spread.fewer)
    # Tables and lists of integers are read as a whole, by kernels that prepare what all entries share.
    spread_out = {name for name, buffer in here.items() if buffer.dtype != "int32" and buffer != there.get(name)}
    launches = []
    for launch, other in zip(plan.launches, fewer.launches):
        sample = _sample(launch, other, spread, spread_out)
        if isinstance(sample, str):
            return dataclasses.replace(plan, unsampled=f"kernel {launch.kernel_name} {sample}")
        launches.append(dataclasses.replace(launch, sample=sample))
    return dataclasses.replace(plan, launches=tuple(launches))


def _sample(launch: Launch, other: Launch, spread: Spread, spread_out: set[str]) -> BlockSample | str | None:
    """Return the sample, None if all blocks run, or the reason why there is no sample."""
    grid, fewer = in_three_dimensions(launch.grid), in_three_dimensions(other.grid)
    entries = spread.extent.entries
    axes = [axis for axis in range(3) if grid[axis] != fewer[axis]]
    if not axes:
        given = (each for arg in launch.args for each in leaves(arg))
        named = (each.buffer if isinstance(each, (TensorMap, Reshaped)) else each for each in given)
        if any(isinstance(name, str) and name in spread_out for name in named):
            return f"has a grid of {_shown(grid)} blocks for any number of sequences"
        return None
    each, rest = divmod(grid[axes[0]], entries)
    if len(axes) > 1 or rest or fewer[axes[0]] != each * (entries - 1):
        return f"has a grid of {_shown(grid)} blocks, which is not in proportion to the {entries:,} sequences"
    if launch.cluster is not None and each % in_three_dimensions(launch.cluster)[axes[0]]:
        return "has clusters of blocks of several sequences"
    return BlockSample(axes[0], each, spread.extent.places)


def _shown(grid: tuple[int, int, int]) -> str:
    return " x ".join(f"{extent:,}" for extent in grid)
