from __future__ import annotations

import math

import numpy as np
import pytest

from harness.model.operation import operation_of
from harness.operations.attention.problem import Problem
from harness.studies.fuzz.shrinking.pattern import describe_pattern

pytestmark = pytest.mark.compiles(False)

AXES = ("batch", "head", "row", "column")
PROBLEM = Problem(batch=2, heads=2, q_len=70, kv_len=50, head_dim=8)
HINTS = operation_of(PROBLEM).hints(PROBLEM, "O")
ANSWER = np.random.default_rng(1).standard_normal(PROBLEM.q_shape)
NOWHERE = np.zeros(PROBLEM.q_shape, bool)


def described(where: tuple[object, ...], value: object, unwritten: bool = False) -> str:
    """The pattern of an O that has `value` at `where`; a number scales the answer."""
    wrong = NOWHERE.copy()
    wrong[where] = True
    got = ANSWER.copy()
    got[where] = ANSWER[where] * value if isinstance(value, float) else value(ANSWER[where])
    return describe_pattern(HINTS, AXES, got, ANSWER, wrong, wrong if unwritten else NOWHERE, tile_rows=32)


def other(values: np.ndarray) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(values.shape)


ALL = slice(None)


@pytest.mark.parametrize(
    ("where", "pattern"),
    [
        ((ALL,), "every element"),
        ((1,), "batch entry 1 only (the last of 2)"),
        ((ALL, 0), "head 0 only"),
        ((ALL, ALL, slice(64, None)), "rows 64 to 69 (tile 2 of 3, counted from 0)"),
        ((ALL, ALL, slice(32, 64)), "rows 32 to 63 (tile 1 of 3, counted from 0)"),
        ((ALL, ALL, slice(66, None)), "rows 66 to 69 (the last 4 of 70)"),
        ((ALL, ALL, ALL, slice(5, None)), "columns 5 to 7 (the last 3 of 8)"),
        ((0, 1, 3, 2), "batch entry 0 only, head 1 only (the last of 2), row 3 only, column 2 only"),
        ((ALL, ALL, slice(0, 70, 2)), "rows 0, 2, ... 68 (every 2)"),
        ((ALL, ALL, [1, 2, 3, 20, 21, 50]), "rows 1 to 3, 20 to 21, 50"),
        ((ALL, ALL, [1, 6, 9]), "rows 1, 6, 9"),
        ((ALL, ALL, [1, 5, 11, 12, 30, 48, 60]), "7 of 70 rows, from row 1 to row 60"),
    ],
)
def test_where_wrong_elements_lie(where: tuple[object, ...], pattern: str):
    assert described(where, other) == f"beyond the budget in {pattern}"


def test_scattered_elements_are_told_from_whole_rows():
    wrong = NOWHERE.copy()
    wrong[0, 0, :10, 0] = wrong[0, 0, 3, :] = True
    got = np.where(wrong, other(ANSWER), ANSWER)
    text = describe_pattern(HINTS, AXES, got, ANSWER, wrong, NOWHERE)
    assert text == "beyond the budget in batch entry 0 only, head 0 only, rows 0 to 9, 21 % of the elements there"
    wrong[:] = False
    wrong[0, 0, :10] = wrong[1, 1, 4] = True
    text = describe_pattern(HINTS, AXES, np.where(wrong, other(ANSWER), ANSWER), ANSWER, wrong, NOWHERE)
    assert text == "beyond the budget in rows 0 to 9, 28 % of the rows there"


@pytest.mark.parametrize(
    ("value", "relation"),
    [
        (2.0, "2 x the answer"),
        (-1.0, "-1 x the answer (the sign is wrong)"),
        (math.log(2), "0.693147 x the answer (ln 2: a base of 2 where it should be e, or the other way round)"),
        (lambda v: np.zeros_like(v), "zero"),
        (lambda v: np.full_like(v, math.nan), "NaN"),
        (lambda v: np.where(v > 0, v + 1, math.inf), "partly NaN or infinite"),
    ],
)
def test_what_stands_where_the_answer_should(value: object, relation: str):
    assert described((ALL,), value) == f"{relation}; every element"


def test_a_factor_per_row_is_told_from_other_errors():
    factors = np.random.default_rng(4).uniform(1.5, 3, (*PROBLEM.lse_shape, 1))
    wrong = ~NOWHERE
    text = describe_pattern(HINTS, AXES, ANSWER * factors, ANSWER, wrong, NOWHERE)
    assert text == "each row multiplied by a different factor; every element"


def test_what_was_never_written_is_told():
    assert described((ALL, ALL, slice(63, 64)), other, unwritten=True) == "never written; row 63 only"


def lse_pattern(problem: Problem, change: object) -> str:
    answer = np.random.default_rng(3).uniform(-5, 5, problem.lse_shape)
    everywhere = np.ones(problem.lse_shape, bool)
    return describe_pattern(
        operation_of(problem).hints(problem, "lse"),
        AXES[:3],
        change(answer),
        answer,
        everywhere,
        ~everywhere,
        is_main=False,
    )


def test_a_logarithm_of_the_wrong_base_is_named():
    assert lse_pattern(PROBLEM, lambda a: a / math.log(2)) == (
        "1.4427 x the answer (1 / ln 2: a logarithm to base 2); every element"
    )
    assert lse_pattern(PROBLEM, lambda a: a + math.log(2)).startswith("the answer +0.693147 (ln 2")


def test_a_missing_scale_is_named_even_where_there_is_one_row_only():
    single = Problem(heads=1, q_len=1, kv_len=1, head_dim=16)
    assert lse_pattern(single, lambda a: a / single.tau) == "4 x the answer (the scale is missing); every element"
    assert lse_pattern(single, lambda a: a * 1.7) == "beyond the budget in every element"


def test_rows_that_see_no_key_are_named():
    problem = Problem(heads=1, q_len=4, kv_len=2, head_dim=2, mask="causal")
    wrong = np.zeros(problem.q_shape, bool)
    wrong[:, :, :2] = True
    answer = np.where(wrong, 0.0, 1.0)
    text = describe_pattern(HINTS, AXES, np.ones(problem.q_shape), answer, wrong, ~wrong & wrong, has_features=True)
    assert text == "rows that see no key are not empty; rows 0 to 1"
