"""The probable cause of a failure in one line, and none where the evidence does not point to one."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from harness.execution.judging.accuracy import Element
from harness.model.cases.case import Case
from harness.operations.attention.cases.build import AttentionBuild
from harness.operations.attention.cases.simplification import peculiarities
from harness.operations.attention.problem import Problem
from harness.studies.fuzz.diagnosis import diagnosis_of, diagnosis_of_case
from harness.studies.fuzz.finding import WRONG_ANSWER, Answer, Finding
from harness.studies.fuzz.report import case_line, evidence, render_replay
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


def test_a_larger_problem_decides_which_known_mistake_it_is() -> None:
    """The smallest problem fits mistakes by chance. A problem that is too large for the comparison says nothing."""
    larger = replace(CASE, problem=replace(CASE.problem, q_len=5, kv_len=9))
    huge = replace(CASE, problem=replace(CASE.problem, q_len=5000, kv_len=9000))
    of_larger = replace(SHIFTED, equals="equals the answer with a scale of 1")
    failure = replace(FAILURE, finding=SHIFTED, larger_case=larger, first_case=huge)
    assert diagnosis_of(replace(failure, larger_finding=of_larger)) == "O equals the answer with a scale of 1"
    assert diagnosis_of(replace(failure, larger_finding=NAN)) is None
    assert diagnosis_of(replace(failure, larger_case=huge)) == "O equals the answer without the last key"
    assert diagnosis_of_case(CASE, SHIFTED, (larger, of_larger)) == "O equals the answer with a scale of 1"
    assert diagnosis_of_case(CASE, SHIFTED, (larger, NAN)) is None
    assert diagnosis_of_case(CASE, SHIFTED, None) == "O equals the answer without the last key"


def test_the_evidence_in_lines() -> None:
    larger = replace(CASE, problem=replace(CASE.problem, q_len=5, kv_len=9))
    race = Finding("RAW race", "lines")
    failure = replace(FAILURE, larger_case=larger, larger_finding=SHIFTED, sanitized=race)
    diagnosis = "the sanitizer finds RAW race (below); O equals the answer without the last key"
    assert evidence(failure) == [
        ("diagnosis", diagnosis),
        ("sanitizer", "RAW race: lines"),
        ("larger", case_line(larger)),
        ("pattern", "NaN"),
    ]
    assert evidence(FAILURE) == []


def test_a_replay_shows_the_diagnosis_and_the_larger_problem() -> None:
    larger = replace(CASE, problem=replace(CASE.problem, q_len=5, kv_len=9), check="key-order")
    found = replace(SHIFTED, pattern="every row")
    lines = render_replay("v", CASE, Answer(NAN), "table", (larger, found)).splitlines()
    assert lines[1].split(maxsplit=1) == ["diagnosis", "O equals the answer without the last key"]
    assert lines[-2].endswith("property checked: key-order")
    assert lines[-1].split(maxsplit=1) == ["pattern", "every row"]
    data = json.loads(render_replay("v", CASE, Answer(NAN), "json", (larger, found)))
    assert data["diagnosis"] == "O equals the answer without the last key" and data["larger"]["pattern"] == "every row"


def test_a_larger_case_of_the_same_race_is_not_described_again() -> None:
    races = Finding("RAW race", "here"), Finding("RAW race", "in another block")
    larger = replace(CASE, problem=replace(CASE.problem, q_len=5))
    lines = render_replay("v", CASE, Answer(races[0]), "table", (larger, races[1]))
    assert "in another block" not in lines
    other = Finding("out of bounds", "elsewhere")
    assert "elsewhere" in render_replay("v", CASE, Answer(races[0]), "table", (larger, other))


def test_a_kernel_without_tiles_needs_a_number_of_keys() -> None:
    case = replace(CASE, problem=replace(CASE.problem, q_len=3, kv_len=70))
    assert peculiarities(case, (1, 3), (64, 32))[:2] == ["3 rows", "more than 64 keys"]
    assert peculiarities(case, (1, 3))[:2] == ["3 rows", "3 tiles of keys"]
    build = AttentionBuild("float32", 64)
    assert build.assumed_tile == (64, 32)
    assert build.with_tile({"Bc": 32}, None).assumed_tile == ()


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
