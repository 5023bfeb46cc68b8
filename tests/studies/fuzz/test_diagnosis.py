"""The probable cause of a failure in one line, and none where the evidence does not point to one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harness.execution.judging.accuracy import Element
from harness.model.cases.case import Case
from harness.operations.attention.problem import Problem
from harness.studies.fuzz.diagnosis import diagnosis_of
from harness.studies.fuzz.finding import WRONG_ANSWER, Finding
from harness.studies.fuzz.result import Failure
from harness.studies.fuzz.shrinking.failing_lengths import LengthsTried

pytestmark = pytest.mark.compiles(False)

CASE = Case(Problem(heads=1, q_len=1, kv_len=1, head_dim=4))
NAN = Finding(WRONG_ANSWER, "wrong", Element("O", (0,), ("batch",), 0.0, 1.0, 0.1), 1, 1, "NaN")
SHIFTED = replace(NAN, equals="equals the answer without the last key")
FAILURE = Failure(CASE, NAN, (1, 1), CASE, NAN, CASE, NAN, 1, 0, True, False)


def lengths(fails: tuple[int, ...], passes: tuple[int, ...]) -> LengthsTried:
    return LengthsTried("kv_len", 32, fails, passes)


def rule(fails: tuple[int, ...], passes: tuple[int, ...]) -> str | None:
    return diagnosis_of(replace(FAILURE, lengths=(lengths(fails, passes),)))


def test_a_known_mistake_and_the_rule_of_the_lengths() -> None:
    assert diagnosis_of(FAILURE) is None
    tried = lengths((1, 2, 31, 33, 63, 65), (32, 64, 96))
    assert diagnosis_of(replace(FAILURE, larger_finding=SHIFTED, lengths=(tried,))) == (
        "O equals the answer without the last key; passes where kv_len is a multiple of 32 (32, 64, 96 were tried)"
    )
    race = Finding("RAW race", "lines")
    assert diagnosis_of(replace(FAILURE, sanitized=race)) == "the sanitizer finds RAW race (below)"


def test_a_test_that_turns_nan_into_zero_is_named() -> None:
    zero = replace(NAN, first=Element("O", (0,), ("batch",), 0.0, math.nan, math.nan))
    assert "write `l != 0`" in diagnosis_of(replace(FAILURE, finding=zero))
    other = replace(NAN, first=Element("O", (0,), ("batch",), 1.0, math.nan, math.nan))
    assert diagnosis_of(replace(FAILURE, finding=other)) is None


def test_a_rule_needs_three_lengths_on_either_side_and_no_counterexample() -> None:
    assert rule((2, 3, 31, 33), (1, 32, 64, 96)) == (
        "passes where kv_len is a multiple of 32 (32, 64, 96 were tried), and at 1"
    )
    assert rule((1, 33, 65), (2, 3, 32)) == "fails where kv_len % 32 is 1"
    assert rule((1, 2, 31, 33), (32, 64)) is None  # too few
    assert rule((31, 33), (32, 64, 96)) is None
    assert rule((1, 2, 31, 33, 128), (32, 64, 96)) is None  # a multiple that fails
    assert rule((1, 2, 31, 33), (32, 64, 95)) is None  # no multiple, and passes
    assert rule((5, 6, 7, 8), ()) is None
