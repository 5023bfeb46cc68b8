"""What a learner writes as a prediction, and the answer to it."""

from __future__ import annotations

import dataclasses

import pytest

from harness.model.lesson import Figure, Prediction
from harness.studies.learn.predictions import JudgedPrediction, read_prediction
from harness.support.errors import UsageError

pytestmark = pytest.mark.compiles(False)

PREDICTION = Prediction(
    question="How many?",
    figure=Figure(name="bytes", kind="bytes", unit="bytes"),
    because="Five passes.",
    tolerance=0.05,
    slips=((800.0, "One pass is missing."),),
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("33MB", 33e6), ("1.25 MiB", 1.25 * 2**20), ("1,310,720", 1_310_720), ("1_000 bytes", 1000), ("32", 32),
        (".5 kb", 500), ("1e3", 1000),
    ],
)  # fmt: skip
def test_a_number_may_have_a_unit(text: str, value: float) -> None:
    assert read_prediction(text) == value


@pytest.mark.parametrize("text", ["", "many", "-5", "3 parsecs", "5 MB/s x", "nan"])
def test_anything_else_is_answered_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="is no prediction; write a number"):
        read_prediction(text)


def test_a_prediction_within_the_tolerance_is_right() -> None:
    assert JudgedPrediction(PREDICTION, 1040.0, 1000.0).is_right
    assert not JudgedPrediction(PREDICTION, 1060.0, 1000.0).is_right
    assert not JudgedPrediction(PREDICTION, None, 1000.0).is_right


@pytest.mark.parametrize(
    ("written", "counted", "is_right"),
    [(16_800_000, 16_777_216, True), (1.57e6, 1_572_864, True), (30, 32, False), (1.6e7, 16_777_216, False)],
)
def test_a_rounded_prediction_is_right(written: float, counted: float, is_right: bool) -> None:
    exact = dataclasses.replace(PREDICTION, tolerance=0.0)
    assert JudgedPrediction(exact, written, counted).is_right == is_right


@pytest.mark.parametrize(("predicted", "is_near"), [(1000, False), (1090, True), (905, True), (890, False)])
def test_a_prediction_within_ten_percent_is_nearly_right(predicted: float, is_near: bool) -> None:
    assert JudgedPrediction(PREDICTION, predicted, 1000.0).is_near == is_near
    assert not JudgedPrediction(PREDICTION, None, 1000.0).is_near


def test_a_slip_is_explained() -> None:
    answer = JudgedPrediction(PREDICTION, 800.0, 1000.0).answer
    assert answer == ("You predicted 800; counted: 1,000 bytes, 25 % more. One pass is missing. Five passes.")


def test_without_a_prediction_the_count_is_shown() -> None:
    assert JudgedPrediction(PREDICTION, None, 1000.0).answer == "Counted: 1,000 bytes. Five passes."
