"""A problem with its inputs, the reference answer, and the tolerated error."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from harness.execution.judging.accuracy import Accuracy, measure_accuracy
from harness.execution.judging.exact_output import ExactOutput, bits_of
from harness.execution.judging.power import Power, measure_power
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Part, Tolerance, draw_inputs, operation_of
from harness.model.problem import ELEMENT_BYTES, IN_OUT, BaseProblem
from harness.model.traffic import Traffic
from harness.support.cores import begin

ANY_KERNEL = Numerics()
"""Numerics of kernels that declare nothing, such as third-party kernels."""


@dataclass(frozen=True)
class _Known:
    """Tolerances that are derived already, in a form that can be sent to another process."""

    tolerances: Mapping[str, Tolerance]

    def __call__(self) -> Mapping[str, Tolerance]:
        return self.tolerances


@dataclass(frozen=True)
class Question:
    """A problem, or a part of it, with its inputs and its reference answer, computed once for all variants."""

    problem: BaseProblem
    """The problem to compute."""
    inputs: Mapping[str, np.ndarray]
    """Input arrays by name."""
    answer: Mapping[str, npt.NDArray[np.float64]]
    """The oracle's answer by output."""
    part: Part = WHOLE
    """The part of the outputs that `answer` covers."""
    _tolerances: dict[Numerics, Callable[[], Mapping[str, Tolerance]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _powers: dict[tuple[Numerics, bool], Power] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def pose(cls, problem: BaseProblem, inputs: Mapping[str, np.ndarray], part: Part = WHOLE) -> Question:
        """Compute the reference answer with the operation's oracle.

        This may take long for a large problem, less for a part.
        """
        return cls(problem, inputs, operation_of(problem).answer(problem, inputs, part), part)

    @cached_property
    def needed_bytes(self) -> Traffic:
        """The least traffic of any correct kernel, in bytes.

        Reads are `Operation.needed_read_bytes`. Writes are those elements of the outputs that are not NaN, since
        outputs are initialized to NaN; of outputs that are given, those that change.
        """
        changed = {name: ~np.isnan(answer) for name, answer in self.answer.items()}
        for tensor in self.problem.with_role(IN_OUT):
            before = self.inputs[tensor.name][self.part.of(tensor.name)]
            changed[tensor.name] = bits_of(before) != bits_of(self.exact_outputs[tensor.name].array)
        written = sum(int(changed[t.name].sum()) * ELEMENT_BYTES[t.dtype] for t in self.problem.outputs)
        return Traffic(operation_of(self.problem).needed_read_bytes(self.problem, self.inputs), written)

    @cached_property
    def exact_outputs(self) -> Mapping[str, ExactOutput]:
        """Outputs whose bits are determined, of the part, by name."""
        operation = operation_of(self.problem)
        given = {tensor.name: self.inputs[tensor.name] for tensor in self.problem.with_role(IN_OUT)}
        return {
            name: ExactOutput(
                bits,
                given[name][self.part.of(name)] if name in given else None,
                functools.partial(operation.element_in_words, self.problem, self.inputs, name),
            )
            for name, bits in operation.exact_outputs(self.problem, self.inputs, self.part).items()
        }

    @classmethod
    def draw(cls, problem: BaseProblem, regime: str = "normal", seed: int = 0) -> Question:
        """Pose a question with random inputs of a regime. Raises `UsageError` for a bad regime or seed."""
        return cls.pose(problem, draw_inputs(problem, regime, seed))

    def tolerance(self, numerics: Numerics = ANY_KERNEL) -> Mapping[str, Tolerance]:
        """The tolerated error of a kernel that rounds where `numerics` says, by output. Cached by numerics."""
        if numerics not in self._tolerances:
            tolerance = self._derived_tolerance(numerics)
            self._tolerances[numerics] = lambda: tolerance
        return self._tolerances[numerics]()

    def settled(self, numerics: Iterable[Numerics]) -> Question:
        """Return a copy that knows the tolerances of these numerics, and keeps nothing else that it can derive.

        It is small, apart from the inputs, and can be sent to another process.
        """
        known: dict[Numerics, Callable[[], Mapping[str, Tolerance]]] = {
            each: _Known(self.tolerance(each)) for each in numerics
        }
        return replace(self, answer=dict(self.answer), _tolerances=known, _powers={})

    def begin_tolerance(self, numerics: Numerics) -> None:
        """Begin to derive `tolerance(numerics)` in a thread, so that a kernel can run at the same time."""
        if numerics not in self._tolerances:
            self._tolerances[numerics] = begin(self._derived_tolerance, numerics)

    def _derived_tolerance(self, numerics: Numerics) -> Mapping[str, Tolerance]:
        operation = operation_of(self.problem)
        return operation.tolerance(self.problem, self.inputs, self.answer, numerics, self.part)

    def power(self, numerics: Numerics = ANY_KERNEL, in_full: bool = True) -> Power:
        """How well the tolerance under `numerics` separates right answers from trivial wrong ones.

        With `in_full`, all rows are evaluated if a few are inconclusive.
        """
        key = (numerics, in_full)
        if key not in self._powers:
            limits = self.tolerance(numerics)
            self._powers[key] = measure_power(self.problem, self.inputs, self.answer, limits, self.part, in_full)
        return self._powers[key]

    def check(
        self,
        outputs: Mapping[str, np.ndarray],
        numerics: Numerics = ANY_KERNEL,
        unwritten: Mapping[str, npt.NDArray[np.bool_]] | None = None,
    ) -> Accuracy:
        """Compare outputs of the whole problem with the answer, or with the part that it covers.

        `unwritten` is as in `Execution`.
        """
        covered = {name: array[self.part.of(name)] for name, array in outputs.items()}
        never_written = (
            None if unwritten is None else {name: array[self.part.of(name)] for name, array in unwritten.items()}
        )
        tolerance = self.tolerance(numerics)
        return measure_accuracy(
            self.problem.tensors, covered, self.answer, tolerance, never_written, self.exact_outputs
        )
