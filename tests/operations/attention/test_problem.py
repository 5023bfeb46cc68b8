from __future__ import annotations

import dataclasses
import math

import pytest

from harness.operations.attention.problem import Problem
from harness.support.errors import ProblemError, UsageError


def test_defaults_are_filled_in():
    problem = Problem(heads=4, head_dim=16)
    assert problem.kv_heads == 4
    assert problem.tau == 0.25
    assert dataclasses.asdict(problem)["scale"] == 0.25


def test_shapes_and_sizes():
    problem = Problem(batch=2, heads=6, kv_heads=2, q_len=5, kv_len=7, head_dim=3, dtype="float16")
    assert problem.q_shape == (2, 6, 5, 3)
    assert problem.kv_shape == (2, 2, 7, 3)
    assert problem.lse_shape == (2, 6, 5)
    assert problem.group == 3
    assert problem.compulsory_read_bytes == 2 * (2 * 6 * 5 * 3 + 2 * 2 * 2 * 7 * 3)
    assert problem.compulsory_write_bytes == 2 * 2 * 6 * 5 * 3
    assert problem.compulsory_bytes == problem.compulsory_read_bytes + problem.compulsory_write_bytes


@pytest.mark.parametrize("field", ["batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
def test_sizes_are_whole_and_positive(field: str, value: object):
    with pytest.raises(ProblemError, match=field):
        Problem(**{field: value})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"heads": 6, "kv_heads": 4}, "multiple"),
        ({"dtype": "float64"}, "float32, float16, bfloat16"),
        ({"scale": math.nan}, "finite"),
        ({"scale": math.inf}, "finite"),
    ],
)
def test_what_does_not_fit_together_is_named(fields: dict[str, object], words: str):
    with pytest.raises(ProblemError, match=words):
        Problem(**fields)
    assert issubclass(ProblemError, UsageError)
