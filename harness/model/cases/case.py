"""Defines the case of a fuzzing campaign: a problem, how its inputs are drawn, and edits of single elements.

A case is small, plain data, however large its tensors are. It contains everything needed to reproduce it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.model.cases.regime import require_seed
from harness.model.operation import DEFAULT_OPERATION, draw_inputs, operation_named, operation_of
from harness.model.problem import BaseProblem
from harness.support.errors import UsageError
from harness.support.numbers import shown

LARGEST_COMPARED_BYTES = 1 << 22
"""Maximum size of the inputs that `Case.with_inputs_of` compares, in bytes."""


@dataclass(frozen=True)
class Edit:
    """An element of an input and its new value."""

    array: str
    """Name of the input, such as `V`."""
    index: tuple[int, ...]
    """Index along each axis."""
    value: float
    """The new value, rounded to the input's dtype when it is stored."""

    def __post_init__(self) -> None:
        """Replace any NaN by one object, since tuples compare by identity first. Equal cases then compare equal."""
        if self.value != self.value:
            object.__setattr__(self, "value", math.nan)

    def __reduce__(self) -> tuple[type[Edit], tuple[str, tuple[int, ...], float]]:
        """Unpickle through `__post_init__`, which replaces NaN."""
        return Edit, (self.array, self.index, self.value)


@dataclass(frozen=True)
class Case:
    """A case. Problem, regime, seed and edits determine its inputs bit for bit."""

    problem: Any
    """An instance of the operation's problem class."""
    regime: str = "normal"
    seed: int = 0
    edits: tuple[Edit, ...] = ()
    tile: str | None = None
    """Tile sizes of the variant, such as `Br=16,Bc=8`; None for its default ones."""
    check: str | None = None
    """Name of a property that is checked besides the answer, such as `determinism`; None for none."""

    def __post_init__(self) -> None:
        inputs = {tensor.name: tensor for tensor in self.problem.inputs}
        for edit in self.edits:
            if edit.array not in inputs:
                raise UsageError(f"an edit names array {edit.array!r}; choose one of {', '.join(inputs)}")
            tensor = inputs[edit.array]
            if len(edit.index) != len(tensor.shape):
                raise UsageError(f"an edit of {edit.array} has {len(edit.index)} indices; it takes {len(tensor.shape)}")
            for axis, extent, index in zip(tensor.axes, tensor.shape, edit.index):
                if not 0 <= index < extent:
                    raise UsageError(f"an edit of {edit.array} names {axis} {index}; it has {extent}, counted from 0")

    def inputs(self) -> dict[str, np.ndarray]:
        """Return an array per input, C-contiguous, of its shape and dtype.

        Raises `UsageError` for an unknown regime.
        """
        inputs = draw_inputs(self.problem, self.regime, self.seed)
        for edit in self.edits:
            with np.errstate(over="ignore", under="ignore"):
                inputs[edit.array][edit.index] = edit.value
        return inputs

    def with_problem(self, problem: Any) -> Case:
        """Return the case with another problem, without the edits that lie outside of its inputs."""
        shapes = {tensor.name: tensor.shape for tensor in problem.inputs}
        fits = (all(i < extent for i, extent in zip(e.index, shapes.get(e.array, (0,)))) for e in self.edits)
        return dataclasses.replace(self, problem=problem, edits=tuple(itertools.compress(self.edits, fits)))

    def with_edits_of(self, other: Case) -> Case:
        """Return the case with the edits of `other`; one that lies outside of an input is moved to its nearest element.

        Edits of inputs that the problem does not have are dropped. Of several edits of one element, the last remains.
        """
        shapes = {tensor.name: tensor.shape for tensor in self.problem.inputs}
        moved: dict[tuple[object, ...], Edit] = {}
        for edit in other.edits:
            if edit.array in shapes:
                index = tuple(min(i, extent - 1) for i, extent in zip(edit.index, shapes[edit.array]))
                moved[edit.array, index] = Edit(edit.array, index, edit.value)
        return dataclasses.replace(self, edits=tuple(moved.values()))

    def with_inputs_of(self, other: Case, most_edits: int) -> Case | None:
        """Return the case with edits that give its drawn inputs the values that they have in `other`.

        Inputs that follow from the problem, such as the arrays of a mask, keep their values. None if an input has
        another shape or dtype, if inputs exceed `LARGEST_COMPARED_BYTES`, or if that takes more than `most_edits`.
        """
        problem = self.problem
        derived = operation_of(problem).derived_inputs(problem)
        layouts = {tensor.name: (tensor.shape, tensor.dtype) for tensor in other.problem.inputs}
        drawn = [tensor for tensor in problem.inputs if tensor.name not in derived]
        if any(layouts.get(tensor.name) != (tensor.shape, tensor.dtype) for tensor in drawn):
            return None
        if sum(tensor.size_bytes for tensor in drawn) > LARGEST_COMPARED_BYTES:
            return None
        own, wanted = self.inputs(), _compared_inputs(other)
        edits = list(self.edits)
        for name in (tensor.name for tensor in drawn):
            for index in _differing(own[name], wanted[name]):
                if len(edits) - len(self.edits) == most_edits:
                    return None
                place = tuple(map(int, index))
                edits.append(Edit(name, place, float(wanted[name][place])))
        return dataclasses.replace(self, edits=tuple(edits))

    def with_fewer_edits(self) -> Iterator[Case]:
        """Yield the case without each of its edits, and without the property that it checks."""
        for left_out in range(len(self.edits)):
            yield dataclasses.replace(self, edits=self.edits[:left_out] + self.edits[left_out + 1 :])
        if self.check is not None:
            yield dataclasses.replace(self, check=None)

    def with_plainer_regime(self) -> Iterator[Case]:
        """Yield the case in each regime that precedes its own."""
        regimes = itertools.takewhile(lambda name: name != self.regime, operation_of(self.problem).regimes)
        return (dataclasses.replace(self, regime=name) for name in regimes)

    def with_small_seed(self) -> Iterator[Case]:
        """Yield the case with each of the smallest seeds."""
        return (dataclasses.replace(self, seed=seed) for seed in (0, 1))

    def to_json(self) -> str:
        """Return one line of JSON for `from_json`. Default values are omitted, except for sizes."""
        operation = self.problem.operation
        content: dict[str, Any] = {} if operation == DEFAULT_OPERATION else {"operation": operation}
        content |= self.problem.to_short_fields()
        if self.regime != "normal":
            content["regime"] = self.regime
        content["seed"] = self.seed
        if self.edits:
            content["edits"] = [[edit.array, *edit.index, _number(edit.value)] for edit in self.edits]
        for name in ("tile", "check"):
            if getattr(self, name) is not None:
                content[name] = getattr(self, name)
        return json.dumps(content, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Case:
        """Return the case that `to_json` wrote. Raises `UsageError` for invalid text."""
        try:
            content = json.loads(text)
            if not isinstance(content, dict):
                raise TypeError("it is not an object")
            operation = operation_named(content.pop("operation", DEFAULT_OPERATION))
            edits = tuple(_edit(*edit) for edit in content.pop("edits", ()))
            own = {name: content.pop(name) for name in ("regime", "seed", "tile", "check") if name in content}
            if unknown := sorted(content.keys() - {*operation.problem.field_names(), "causal"}):
                raise TypeError(f"{operation.name} has no field {unknown[0]!r}")
            problem: BaseProblem = operation.problem.from_fields(content)
            for name in ("regime", "tile", "check"):
                if not isinstance(own.get(name, ""), str):
                    raise TypeError(f"its {name} is no text")
            case = cls(problem, edits=edits, **own)
        except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError) as error:
            why = " ".join(str(error).split())
            raise UsageError(f"this is not a case that 'fuzz' printed: {why}: {shown(text)}") from error
        require_seed(case.seed)
        return case


@lru_cache(maxsize=1)
def _compared_inputs(case: Case) -> Mapping[str, np.ndarray]:
    """The inputs of a case that many others are compared with, one after the other; nobody writes to them."""
    return case.inputs()


def _differing(one: np.ndarray, other: np.ndarray) -> npt.NDArray[np.intp]:
    """Indices, (places, axes), where two arrays of one shape and dtype differ; any NaN equals any other."""
    bits = f"u{one.itemsize}"
    places = np.argwhere(one.view(bits) != other.view(bits))
    a, b = (array[tuple(places.T)].astype(np.float64) for array in (one, other))
    return np.asarray(places[~(np.isnan(a) & np.isnan(b))])


def _edit(array: str, *rest: Any) -> Edit:
    *index, value = rest
    if any(isinstance(each, bool) or not isinstance(each, int) for each in index):
        raise TypeError(f"the index of an edit of {array} is not made of whole numbers")
    return Edit(array, tuple(index), float(value))


def _number(value: float) -> float | str:
    """Return NaN and infinity as text, because JSON does not have them."""
    return value if math.isfinite(value) else str(value)
