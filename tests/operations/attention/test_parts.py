"""Which rows of a large answer are worked out."""

from __future__ import annotations

import pytest

from harness.execution.judging.spot_check import WHOLE_FLOPS
from harness.model.operation import MOST_PARTS, WHOLE
from harness.operations.attention.operation import choose_parts
from harness.operations.attention.problem import Problem


def test_of_a_small_answer_all_of_it() -> None:
    assert choose_parts(Problem(q_len=256, kv_len=256), WHOLE_FLOPS) == (WHOLE,)


@pytest.mark.parametrize(("q_len", "kv_len"), [(16384, 16384), (1, 8192)])
def test_of_a_large_one_the_first_and_the_last_rows_and_some_between(q_len: int, kv_len: int) -> None:
    problem = Problem(batch=4, heads=32, kv_heads=8, q_len=q_len, kv_len=kv_len, head_dim=128, dtype="bfloat16")
    parts = choose_parts(problem, WHOLE_FLOPS)
    assert len(parts) == MOST_PARTS
    assert parts[0].where[:2] == (slice(0, 1), slice(0, 1)) and parts[-1].where[:2] == (slice(3, 4), slice(31, 32))
    assert parts[0].where[2].start == 0 and parts[-1].where[2].stop == q_len


def test_a_row_of_very_many_keys_costs_what_a_tile_of_rows_does() -> None:
    """Few flops, but all keys are drawn, converted and bounded for each head."""
    problem = Problem(heads=32, kv_heads=8, q_len=1, kv_len=131072, head_dim=128, dtype="bfloat16")
    assert problem.flops < WHOLE_FLOPS
    parts = choose_parts(problem, WHOLE_FLOPS)
    assert [part.where[1].start for part in parts] == [0, 15, 31]
