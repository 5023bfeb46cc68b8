"""Checks that the blocks that were sampled of a huge problem are those of its entries, before a kernel is blamed.

Grids do not say in which order blocks belong to entries: `planning.sampling` assumes that those of one entry lie next
to each other. Where they do not, the sample is wrong at small offsets, too.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.execution.judging.question import Question
from harness.execution.planning.variant_calls import make_plan
from harness.execution.protocol import Executor
from harness.model.plan import Plan
from harness.model.variant import Variant
from harness.support.errors import KernelFault, UnsupportedProblem


def require_sound_sample(
    variant: Variant, plan: Plan, executor: Executor, question: Question, inputs: Mapping[str, np.ndarray]
) -> None:
    """Raise `UnsupportedProblem` if the same sample is wrong where the problem's entries lie next to each other.

    `plan` is that of a problem with a `spread`, on which the kernel failed. Returns if all blocks ran, or those of an
    entry have an index of the grid of their own.
    """
    spread = question.problem.spread
    samples = [launch.sample for launch in plan.launches if launch.sample is not None]
    if spread is None or executor.device.is_gpu or all(sample.blocks_per_entry == 1 for sample in samples):
        return
    try:
        near = executor.run(spread.near, make_plan(variant, spread.near, executor.device.arch), inputs)
        is_right = question.check(near.outputs, variant.numerics).passed
    except KernelFault:
        is_right = False
    if not is_right:
        raise UnsupportedProblem(
            variant.name,
            "its grid does not show which blocks belong to a sequence: those that should are wrong even "
            "where offsets are small",
        )
