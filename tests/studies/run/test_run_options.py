"""What `run --help` states about inputs that only some problems have."""

from __future__ import annotations

import argparse
import dataclasses

import pytest

from harness.model.operation import Operation, operation_named
from harness.operations.attention.operation import OPERATION
from harness.studies.run.command import add_options

pytestmark = pytest.mark.compiles(False)


def helps(operation: Operation = OPERATION) -> dict[str, str]:
    """The help of each option."""
    parser = argparse.ArgumentParser()
    add_options(parser, operation)
    return {action.option_strings[0]: action.help or "" for action in parser._actions if action.option_strings}


@pytest.mark.parametrize("name", ["attention", "attention-backward"])
def test_a_flag_alone_suffices_where_inputs_follow_from_the_problem(name: str):
    operation = operation_named(name)
    options = helps(operation)
    for array, further in operation.further_inputs.items():
        problem = operation.problem.from_fields({further.field: further.value})
        follows = array in operation.derived_inputs(problem)
        assert further.follows == follows == (f"--{further.field}" in options and further.field != array)
        assert (f"--{further.field} alone uses the default ones" in options[f"--{array.lower()}"]) == follows


def test_an_input_that_does_not_follow_has_no_default():
    drawn = dataclasses.replace(OPERATION.further_inputs["slopes"], follows=False)
    operation = dataclasses.replace(OPERATION, further_inputs={"slopes": drawn})
    assert helps(operation)["--slopes"] == "slopes: (head), in float32"


def test_an_extent_of_1_is_for_inputs_that_may_lack_an_axis():
    options = helps()
    assert {name for name, text in options.items() if "an extent of 1" in text} == {"--bias"}
