"""Kernels with few queries in Numba, beside their CUDA twins: the same plans, bits and bytes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from attention_runs import EXECUTOR
from lanes import exhaustive_unless

from harness.execution.judging.question import Question
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.problem import BaseProblem
from harness.operations.attention.problem import Problem
from harness.operations.paged_attention.problem import PagedProblem

# Builds that tests of every variant need, too: each takes seconds in Numba.
DENSE = Problem(batch=2, heads=6, kv_heads=3, q_len=3, kv_len=1100, head_dim=48, dtype="float16", mask="window:700")
PAGED = PagedProblem(lengths=(17, 300, 0, 4096, *(5,) * 32), q_len=2, head_dim=24, page_size=32, dtype="float16")
CASES: list[tuple[str, BaseProblem]] = [
    ("lean", DENSE),
    ("unified-max", DENSE),
    ("paged-lean", PAGED),
    (
        "cascade",
        dataclasses.replace(PAGED, head_dim=24, page_size=32, lengths=(1200, 40, 1100, 0, *(5,) * 32), prefix=1050),
    ),
    ("paged-lean", dataclasses.replace(PAGED, kv_dtype="e4m3")),
    ("lean", dataclasses.replace(DENSE, head_dim=50, dtype="bfloat16", mask="causal", alibi=True)),
    ("unified-max", dataclasses.replace(DENSE, head_dim=33, q_len=20, mask="causal", softcap=5.0)),
]


@pytest.mark.parametrize(("name", "problem"), exhaustive_unless(lambda case: case in CASES[:4], CASES))
def test_both_kernels_give_the_same_bits_and_move_the_same_bytes(name: str, problem: BaseProblem):
    variants = [discover().registry.get(f"{name}-{language}") for language in ("cupy", "numba")]
    inputs = draw_inputs(problem, "normal", seed=1)
    plans = [variant.plan(problem) for variant in variants]
    assert plans[0].buffers == plans[1].buffers
    of_launches = [[(each.args, each.grid, each.block, each.shared_bytes) for each in plan.launches] for plan in plans]
    assert of_launches[0] == of_launches[1]
    cupy, numba = (EXECUTOR.run(problem, plan, inputs) for plan in plans)
    for output in cupy.outputs:
        assert cupy.outputs[output].tobytes() == numba.outputs[output].tobytes(), output
    assert (cupy.read_bytes, cupy.write_bytes) == (numba.read_bytes, numba.write_bytes)


def test_rows_that_leave_the_range_are_computed_again():
    problem = dataclasses.replace(DENSE, kv_len=600)
    variant = discover().registry.get("unified-max-numba")
    inputs = dict(draw_inputs(problem, "normal", seed=2))
    inputs["Q"][0, 0] *= np.float16(40)
    execution = EXECUTOR.run(problem, variant.plan(problem), inputs)
    accuracy = Question.pose(problem, inputs).check(execution.outputs, variant.numerics)
    assert accuracy.reason is None, accuracy.reason
    assert variant.claim is not None
    claimed = variant.claim(problem)
    assert claimed.read_bytes < execution.read_bytes <= claimed.read_bytes + claimed.further_read_bytes
