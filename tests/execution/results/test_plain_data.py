"""Results come back from JSON as they went, and nothing else is made of what is no result."""

from __future__ import annotations

import json
import math

import pytest

from harness.execution.outcome import OutputErrors, Row
from harness.execution.results.plain_data import from_plain, to_plain
from harness.model.cases.case import Case, Edit
from harness.operations.attention.problem import Problem
from harness.studies.fuzz.finding import Answer, Finding

pytestmark = pytest.mark.compiles(False)

PROBLEM = Problem(q_len=5, kv_len=9, mask="causal+window:4", heads=6, kv_heads=2)
VALUES = [
    None, True, 3, 0.1, "text", [1, [2]], (1, ("a",)), {"a": 1, 2: (3,)}, math.inf, 5e-324, PROBLEM,
    Case(PROBLEM, "normal", 7, (Edit("V", (0, 0, 1, 2), math.inf),), "Br=16,Bc=8", "determinism"),
    Answer(Finding("wrong answer", "off"), error_over_budget=1.5),
    Row(variant="v", algorithm=None, backend="cupy", verdict="pass", compulsory_bytes=8,
        optional_errors={"lse": OutputErrors(0.1, 0.2, 0.3)}),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=[type(value).__name__ for value in VALUES])
def test_a_value_comes_back_as_it_went(value: object):
    back = from_plain(json.loads(json.dumps(to_plain(value))))
    assert back == value and type(back) is type(value)


def test_what_is_not_known_stays_not_known():
    assert math.isnan(from_plain(json.loads(json.dumps(to_plain(math.nan)))))


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: 1])
def test_what_is_no_plain_data_is_refused(value: object):
    with pytest.raises(TypeError, match="no plain data"):
        to_plain(value)


@pytest.mark.parametrize(
    "kind", ["os:system", "harness.support.cache:Cache", "harness.cli:main", "harness.nowhere:A", "x"]
)
def test_nothing_is_made_but_dataclasses_of_the_harness(kind: str):
    with pytest.raises(ValueError, match="no dataclass"):
        from_plain({"=": kind})
