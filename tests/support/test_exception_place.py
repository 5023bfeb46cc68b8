from __future__ import annotations

import json
from pathlib import Path

from harness.model.operation import draw_inputs
from harness.operations.attention.problem import Problem
from harness.support.exception_place import where_and_what


def caught(run) -> BaseException:
    try:
        run()
    except Exception as error:
        return error
    raise AssertionError("it should have raised")


def test_the_place_is_the_authors_own_line_and_not_the_librarys():
    text = where_and_what(caught(lambda: json.loads("{")))
    assert text.startswith(f"{Path(__file__)}:")
    assert "JSONDecodeError" in text


def test_the_harness_is_no_place_to_look():
    assert where_and_what(caught(lambda: draw_inputs(Problem(), "nonsense"))).startswith(__file__)


def test_it_is_one_line_whatever_the_message():
    def fail() -> None:
        raise ValueError("one\n   two")

    text = where_and_what(caught(fail))
    assert text.endswith(": ValueError: one two")
    assert where_and_what(ValueError()) == "ValueError"


def test_a_syntax_error_has_its_own_place():
    error = caught(lambda: compile("x = (\n", "mine.py", "exec"))
    assert where_and_what(error).startswith("mine.py:1: SyntaxError")
