"""One example of a fuzzing campaign: a problem, how its inputs are drawn, and single elements that are overwritten.

A case is small and plain however large its tensors are. It says all that it takes to run it again, anywhere.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.operations.attention.inputs import draw_inputs
from harness.operations.attention.problem import Problem
from harness.support.errors import UsageError

_ALWAYS_WRITTEN = ("heads", "q_len", "kv_len", "head_dim")
_WHERE = ("batch", "head", "row", "column")


@dataclass(frozen=True)
class Edit:
    """One element of Q, K or V and what it becomes."""

    array: str
    """`Q`, `K` or `V`."""
    batch: int
    head: int
    """A key/value head where `array` is K or V."""
    row: int
    column: int
    value: float
    """Rounded to the problem's dtype where it is stored."""


@dataclass(frozen=True)
class Case:
    """Problem + regime + seed + edits = inputs, bit for bit the same every time."""

    problem: Problem
    regime: str = "normal"
    seed: int = 0
    edits: tuple[Edit, ...] = ()
    tile: str | None = None
    """Tile sizes of the variant, such as `Br=16,Bc=8`; None: its default ones."""
    check: str | None = None
    """A property that is held besides the answer itself, such as `determinism`; None: the answer alone."""

    def __post_init__(self) -> None:
        for edit in self.edits:
            shapes = {"Q": self.problem.q_shape, "K": self.problem.kv_shape, "V": self.problem.kv_shape}
            if edit.array not in shapes:
                raise UsageError(f"an edit names array {edit.array!r}; choose Q, K or V")
            for axis, extent in zip(_WHERE, shapes[edit.array]):
                index = getattr(edit, axis)
                if not 0 <= index < extent:
                    raise UsageError(f"an edit of {edit.array} names {axis} {index}; it has {extent}, counted from 0")

    def inputs(self) -> dict[str, np.ndarray]:
        """Q, K and V: C-contiguous, in the problem's shapes and dtype. Raises `UsageError` for an unknown regime."""
        inputs = draw_inputs(self.problem, self.regime, self.seed)
        for edit in self.edits:
            with np.errstate(over="ignore", under="ignore"):
                inputs[edit.array][edit.batch, edit.head, edit.row, edit.column] = edit.value
        return inputs

    def to_json(self) -> str:
        """One line that `from_json` reads. What has its default is left out, but for the sizes."""
        content: dict[str, Any] = {}
        # None stands for defaults that follow from other fields.
        plain = Problem(heads=self.problem.heads, head_dim=self.problem.head_dim).to_fields()
        for name, value in self.problem.to_fields().items():
            if name in _ALWAYS_WRITTEN or value != plain[name]:
                content[name] = value
        if self.regime != "normal":
            content["regime"] = self.regime
        content["seed"] = self.seed
        if self.edits:
            content["edits"] = [[*dataclasses.astuple(e)[:-1], _number(e.value)] for e in self.edits]
        for name in ("tile", "check"):
            if getattr(self, name) is not None:
                content[name] = getattr(self, name)
        return json.dumps(content, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Case:
        """The case that `to_json` wrote. Raises `UsageError` where the text is none."""
        try:
            content = json.loads(text)
            if not isinstance(content, dict):
                raise TypeError("it is not an object")
            edits = tuple(_edit(*edit) for edit in content.pop("edits", ()))
            own = {name: content.pop(name) for name in ("regime", "seed", "tile", "check") if name in content}
            case = cls(Problem.from_fields(content), edits=edits, **own)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise UsageError(f"this is no case that 'fuzz' wrote: {' '.join(str(error).split())}: {text}") from error
        if isinstance(case.seed, bool) or not isinstance(case.seed, int):
            raise UsageError(f"seed is {case.seed!r}; it has to be a whole number")
        return case


def _edit(array: str, batch: int, head: int, row: int, column: int, value: float | str) -> Edit:
    return Edit(array, batch, head, row, column, float(value))


def _number(value: float) -> float | str:
    """JSON has neither NaN nor infinity: these are written as text."""
    return value if math.isfinite(value) else str(value)
