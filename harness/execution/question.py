"""A problem with its inputs, the answer to it, and how far off an answer may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from harness.execution.accuracy import Accuracy, measure_accuracy
from harness.execution.power import Power, measure_power
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Part, Tolerance, draw_inputs, operation_of
from harness.model.problem import ELEMENT_BYTES, BaseProblem
from harness.model.traffic import Traffic

ANY_KERNEL = Numerics()
"""Of kernels that say nothing about where they round, somebody else's above all."""


@dataclass(frozen=True)
class Question:
    """A problem, or a part of it, with its inputs and the answer, worked out once for all variants."""

    problem: BaseProblem
    """What is to be computed."""
    inputs: Mapping[str, np.ndarray]
    """An array per input."""
    answer: Mapping[str, npt.NDArray[np.float64]]
    """The oracle's, by output."""
    part: Part = WHOLE
    """What of the outputs `answer` is."""
    _tolerances: dict[Numerics, Mapping[str, Tolerance]] = field(default_factory=dict, repr=False, compare=False)
    _powers: dict[tuple[Numerics, bool], Power] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def pose(cls, problem: BaseProblem, inputs: Mapping[str, np.ndarray], part: Part = WHOLE) -> Question:
        """Ask the operation's oracle, which may take long for a large problem, less for a part of it."""
        return cls(problem, inputs, operation_of(problem).answer(problem, inputs, part), part)

    @cached_property
    def needed_bytes(self) -> Traffic:
        """What every right kernel reads and writes at least: see `Operation.needed_read_bytes`.

        It writes each element of the outputs that is not NaN, which is what they hold before anything is written.
        """
        finite = {name: int((~np.isnan(self.answer[name])).sum()) for name in self.answer}
        written = sum(finite[t.name] * ELEMENT_BYTES[t.dtype] for t in self.problem.outputs)
        return Traffic(operation_of(self.problem).needed_read_bytes(self.problem, self.inputs), written)

    @classmethod
    def draw(cls, problem: BaseProblem, regime: str = "normal", seed: int = 0) -> Question:
        """The same with inputs of a regime. Raises `UsageError` for a bad regime or seed."""
        return cls.pose(problem, draw_inputs(problem, regime, seed))

    def tolerance(self, numerics: Numerics = ANY_KERNEL) -> Mapping[str, Tolerance]:
        """How far off an answer may be that rounds where `numerics` says. Worked out once for all that agree on it."""
        if numerics not in self._tolerances:
            operation = operation_of(self.problem)
            self._tolerances[numerics] = operation.tolerance(
                self.problem, self.inputs, self.answer, numerics, self.part
            )
        return self._tolerances[numerics]

    def power(self, numerics: Numerics = ANY_KERNEL, in_full: bool = True) -> Power:
        """How well it tells right answers from trivial wrong ones, under the limits that `numerics` leave.

        `in_full`: on all rows where a few do not decide.
        """
        key = (numerics, in_full)
        if key not in self._powers:
            limits = self.tolerance(numerics)
            self._powers[key] = measure_power(self.problem, self.inputs, self.answer, limits, self.part, in_full)
        return self._powers[key]

    def hold(
        self,
        outputs: Mapping[str, np.ndarray],
        numerics: Numerics = ANY_KERNEL,
        unwritten: Mapping[str, npt.NDArray[np.bool_]] | None = None,
    ) -> Accuracy:
        """Hold outputs of the whole problem against the answer, as far as that goes; `unwritten`: see `Execution`."""
        here = {name: array[self.part.of(name)] for name, array in outputs.items()}
        nobody = None if unwritten is None else {name: array[self.part.of(name)] for name, array in unwritten.items()}
        return measure_accuracy(self.problem.tensors, here, self.answer, self.tolerance(numerics), nobody)
