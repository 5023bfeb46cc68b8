"""Finds grids that leave multiprocessors idle, and how many heads would fill the GPU."""

from __future__ import annotations

from harness.model.problem import BaseProblem
from harness.studies.why.profile import Profile
from harness.support.gpu_data_sheets import Gpu

BLOCKS_PER_MULTIPROCESSOR = 2
"""So many that none is idle, and that the tail is short."""


def blocks_of_main_launch(profile: Profile) -> int:
    """The number of blocks of the launch that executes most instructions."""
    main = max(profile.launches, key=lambda launch: launch.instructions.warps_of(lambda row: True))
    return main.blocks


def heads_that_fill(problem: BaseProblem, blocks: int, gpu: Gpu) -> int | None:
    """The number of heads with which a grid that now has so many blocks fills the GPU; None if there are no heads."""
    fields = problem.to_fields()
    heads, kv_heads = fields.get("heads"), fields.get("kv_heads")
    if not isinstance(heads, int):
        return None
    wanted = -(-BLOCKS_PER_MULTIPROCESSOR * gpu.multiprocessors * heads // blocks)
    step = kv_heads if isinstance(kv_heads, int) and kv_heads != heads else 1
    return -(-wanted // step) * step
