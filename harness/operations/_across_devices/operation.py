"""Makes an operation of another one that devices compute together: what both have in common is the other's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.model.array_types import Arrays
from harness.model.cases.case import Case
from harness.model.cases.regime import Regime
from harness.model.operation import Operation, Part
from harness.operations._across_devices.cases import DividedCases
from harness.operations._across_devices.problem import DividedProblem
from harness.operations._across_devices.properties import changes
from harness.operations.attention.sizes import Sizes


@dataclass(frozen=True, eq=False)
class WholeSequence:
    """Functions of an `Operation` that ask the other operation about the whole sequence."""

    cases: DividedCases

    @property
    def inner(self) -> Operation:
        """The other operation."""
        return self.cases.inner

    @property
    def own_settings(self) -> tuple[str, ...]:
        """The fields that say how a problem is divided."""
        of_sizes = {field.name for field in dataclasses.fields(Sizes)}
        names = (field.name for field in dataclasses.fields(self.cases.problem_class))
        return tuple(name for name in names if name not in of_sizes)

    def parts(self, problem: DividedProblem, whole_flops: float) -> tuple[Part, ...]:
        """Return the parts that the other operation chooses for the whole sequence."""
        return self.inner.parts(problem.whole, whole_flops)

    def shorter(self, problem: DividedProblem) -> Iterator[tuple[str, Any]]:
        """Yield the same problem with smaller lengths, as the other operation does, or if they are equal, with both."""
        for words, smaller in self.inner.shorter(problem.whole):
            found = self.cases.divided(smaller, problem)
            lengths = found.q_len, found.kv_len
            if lengths != (problem.q_len, problem.kv_len):
                is_square = found.q_len == found.kv_len and lengths != (smaller.q_len, smaller.kv_len)
                yield f"--seq-len {found.q_len}" if is_square else words, found

    def peculiarities(self, case: Case, tiles: Sequence[int], assumed_tile: Sequence[int] = ()) -> list[str]:
        """Return what distinguishes the case: how it is divided, then what the other operation says."""
        p = case.problem
        rest = p.kv_len % p.devices
        own: list[str] = p.division_in_words
        own += [f"{p.kv_len} rows, {rest} more than a multiple of the devices"] if rest else []
        return own + self.inner.peculiarities(case.with_problem(p.whole), tiles, assumed_tile)

    def problem_of_arrays(self, arrays: Arrays, dtype: str, fields: Mapping[str, Any]) -> DividedProblem:
        """Return the problem of the arrays of a whole sequence. Raises `UsageError` or `ProblemError`."""
        of_arrays, problem_class = self.inner.problem_of_arrays, self.cases.problem_class
        assert of_arrays is not None
        own = {name: fields[name] for name in self.own_settings if name in fields}
        others = {name: value for name, value in fields.items() if name not in own}
        whole = of_arrays(arrays, dtype, others)
        sizes = {name: getattr(whole, name) for name in problem_class().to_fields() if hasattr(whole, name)}
        return problem_class.from_fields({**sizes, **own})

    def field_in_words(self, problem: DividedProblem, name: str) -> list[str]:
        """Describe a field, as `Operation.field_in_words` does."""
        if name == "devices":
            return [f"{problem.devices} devices"]
        if name == "row_order":
            return problem.division_in_words[1:]
        return self.inner.field_in_words(problem.whole, name)


@dataclass(frozen=True)
class DrawnWhole:
    """Draws all inputs of the whole sequence. It can be sent to worker processes."""

    regime: Regime

    def __call__(self, rng: np.random.Generator, problem: DividedProblem) -> Sequence[npt.NDArray[np.float64]]:
        """Return Q, K, V and the others, in the order of the problem's inputs."""
        return self.regime.draw(rng, problem.whole)


def _regimes_of(operation: Operation) -> Mapping[str, Regime]:
    """Return every regime of the operation by name, for the problems of a ring."""
    return {name: Regime(name, each.idea, DrawnWhole(each)) for name, each in operation.regimes.items()}


def divided_operation(cases: DividedCases, **own: Any) -> Operation:
    """Return the operation that divides that of `cases` over devices.

    `own` has the fields of `Operation` that do not follow from the other one: name, idea, answer, tolerance, properties
    and known mistakes.
    """
    inner, whole = cases.inner, WholeSequence(cases)
    return Operation(
        problem=cases.problem_class,
        regimes=_regimes_of(inner),
        numerics_used=lambda problem: inner.numerics_used(problem.whole),
        trivial_answers=lambda problem, inputs: inner.trivial_answers(problem.whole, inputs),
        shorter=whole.shorter,
        needed_read_bytes=lambda problem, inputs: inner.needed_read_bytes(problem.whole, inputs),
        parts=whole.parts,
        builds_of=cases.builds_of,
        cases=cases.cases,
        axes=cases.axes,
        changes=changes,
        leaves_regime=lambda case: inner.leaves_regime(case.with_problem(case.problem.whole)),
        simpler=cases.simpler,
        size=cases.size,
        enlarged=cases.enlarged,
        probed_axes=cases.probed_axes,
        peculiarities=whole.peculiarities,
        tile_names=inner.tile_names,
        hints=lambda problem, output: inner.hints(problem.whole, output),
        settings=("mask", "scale", *whole.own_settings),
        problem_of_arrays=whole.problem_of_arrays,
        lengths={"seq_len": ("q_len", "kv_len")},
        field_in_words=whole.field_in_words,
        require_sweepable=lambda problem: inner.require_sweepable(problem.whole),
        flops_in_words=inner.flops_in_words,
        **own,
    )
