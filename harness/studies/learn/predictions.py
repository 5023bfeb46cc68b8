"""Reads a learner's prediction, and compares it with the counted figure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.model.lesson import Prediction
from harness.studies.learn.figures import shown
from harness.support.errors import UsageError

UNITS = {
    "": 1, "b": 1, "byte": 1, "bytes": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30,
    "k": 1e3, "m": 1e6,
}  # fmt: skip
"""Factors by unit, in lower case."""
_NUMBER = re.compile(r"\s*([0-9][0-9,_']*\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)\s*")
SLIP_TOLERANCE = 0.01
NEAR = 0.1
"""Largest relative difference of a prediction that is nearly right."""


@dataclass(frozen=True)
class JudgedPrediction:
    """A prediction and what was counted."""

    prediction: Prediction
    predicted: float | None
    """None if nothing was predicted."""
    counted: float

    @property
    def is_right(self) -> bool:
        """Whether it is within the tolerance, or is the counted figure rounded to as many digits, at least two."""
        if self.predicted is None:
            return False
        rounded = _rounded_like(self.predicted, self.counted)
        return self.predicted == rounded or _near(self.predicted, self.counted, self.prediction.tolerance)

    @property
    def is_near(self) -> bool:
        """Whether it is not right, but within 10 % of the counted figure."""
        return self.predicted is not None and not self.is_right and _near(self.predicted, self.counted, NEAR)

    @property
    def answer(self) -> str:
        """The answer in a sentence or two, with what a typical wrong answer overlooks."""
        unit = f" {self.prediction.figure.unit}" if self.prediction.figure.unit else ""
        counted = f"{shown(self.counted)}{unit}"
        if self.predicted is None:
            return f"Counted: {counted}. {self.prediction.because}"
        if self.is_right:
            return f"Right: {counted}. {self.prediction.because}"
        slip = next((text for value, text in self.prediction.slips if _near(self.predicted, value, SLIP_TOLERANCE)), "")
        factor = self._factor()
        parts = [f"You predicted {shown(self.predicted)}; counted: {counted}{factor}.", slip, self.prediction.because]
        return " ".join(part for part in parts if part)

    def _factor(self) -> str:
        if not self.predicted or not self.counted:
            return ""
        ratio = self.counted / self.predicted
        if 0.5 < ratio < 2:
            return f", {100 * abs(ratio - 1):.3g} % {'more' if ratio > 1 else 'less'}"
        return f", {ratio:,.4g} times as much" if ratio > 1 else f", 1 / {1 / ratio:,.4g} of it"


def read_prediction(text: str) -> float:
    """Read a number with an optional unit: `33MB`, `1.25 MiB`, `1,310,720`, `32`. Raises `UsageError` otherwise."""
    match = _NUMBER.fullmatch(text)
    if match is None or match[2].lower() not in UNITS:
        raise UsageError(
            f"{text!r} is no prediction; write a number, with a unit if you like: 1,310,720, 33MB, 1.25MiB"
        )
    return float(re.sub("[,_']", "", match[1])) * UNITS[match[2].lower()]


def _rounded_like(written: float, value: float) -> float:
    """Round a value to as many significant digits as a number was written with, but at least two."""
    digits = len(f"{written:.15g}".partition("e")[0].replace(".", "").strip("0"))
    return float(f"{value:.{max(digits, 2) - 1}e}")


def _near(value: float, target: float, tolerance: float) -> bool:
    return abs(value - target) <= tolerance * abs(target) + 1e-9
