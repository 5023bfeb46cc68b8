"""What campaigns of gradients meet: attention's own cases, each with a gradient of O, and harder gradients besides."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.model.cases.axes import REGIME, Axes, Choice, ProbedAxis, Value
from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.cases.wrapped_build import WrappedBuild
from harness.model.operation import operation_named
from harness.operations.attention.problem import LAYOUT
from harness.operations.attention.score_terms import SLOPES
from harness.operations.attention_backward.inputs import REGIMES, forward_regime
from harness.operations.attention_backward.problem import BackwardProblem
from harness.support.override import override

if TYPE_CHECKING:
    from hypothesis import strategies as st

FORWARD = operation_named("attention")
EDITED = ("V", SLOPES)
"""The only inputs that are edited. After an edit of Q, K, a bias or a sink, O and lse would not fit, and weights may
exceed 1. Steeper slopes only make weights smaller. Where a slope becomes less steep or negative, weights exceed 1; what
overflows then has no budget."""


@dataclass(frozen=True)
class BackwardBuild(WrappedBuild):
    """What attention's kernels have compiled in, for gradients."""

    @property
    @override
    def plain_problem(self) -> BackwardProblem:
        return backward(self.forward.plain_problem)

    @override
    def with_features(self, takes: Sequence[str], place: int) -> BackwardBuild:
        """The build with the features that attention's build would have, except for layouts, of which it has one."""
        return dataclasses.replace(
            self, forward=self.forward.with_features([name for name in takes if name != LAYOUT], place)
        )

    @override
    def places_of_features(self, takes: Sequence[str]) -> int:
        places: int = self.forward.places_of_features(takes)
        return places

    @property
    @override
    def with_fewer_features(self) -> Sequence[BackwardBuild]:
        return [BackwardBuild(each, self.tile) for each in self.forward.with_fewer_features]

    @override
    def of_problem(self, problem: Any) -> BackwardBuild:
        return dataclasses.replace(self, forward=self.forward.of_problem(problem))

    @property
    @override
    def assumed_tile(self) -> tuple[int, ...]:
        tile: tuple[int, ...] = self.forward.assumed_tile
        return tile

    @override
    def tiles(self, problem: Any) -> tuple[int, ...]:
        tiles: tuple[int, ...] = self.forward.tiles(problem)
        return tiles


def builds_of(seed: int) -> tuple[BackwardBuild, ...]:
    """Attention's builds of a campaign with that seed, for gradients."""
    return tuple(map(BackwardBuild, FORWARD.builds_of(seed)))


BUILDS = builds_of(0)


def backward(problem: Any) -> BackwardProblem:
    """The gradients of a problem of attention."""
    return BackwardProblem(**{field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)})


def backward_case(case: Case, regime: str | None = None) -> Case:
    """The gradients of a case of attention, with those of its edits that leave O and lse what they are.

    `regime`: that of the gradients; None: the case's own.
    """
    edits = tuple(edit for edit in case.edits if edit.array in EDITED)
    return dataclasses.replace(case, problem=backward(case.problem), edits=edits, regime=regime or case.regime)


def own_regimes() -> list[str]:
    """The regimes that attention itself does not have."""
    return [name for name in REGIMES if forward_regime(name) != name]


class BackwardAxes(Axes):
    """Attention's axes, with the regimes of gradients."""

    def __init__(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]) -> None:
        """Arguments as of `Operation.axes`."""
        axes = FORWARD.axes(most_tiles, checks, takes)
        assert axes is not None
        self._forward = axes

    @property
    @override
    def values(self) -> Mapping[str, Sequence[Value]]:
        values = self._forward.values
        return {**values, REGIME: (*values[REGIME], *map(Value, own_regimes()))}

    @override
    def meet(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        return self._forward.meet(one, other)

    @override
    def takes_too_long(self, build: BackwardBuild, choice: Choice) -> bool:
        return self._forward.takes_too_long(build.forward, choice)

    @property
    @override
    def common(self) -> Sequence[Choice]:
        return self._forward.common

    @property
    @override
    def long(self) -> Sequence[Choice]:
        return self._forward.long

    @override
    def far_cases(self, build: BackwardBuild, seed: int) -> Sequence[Case]:
        return tuple(map(backward_case, self._forward.far_cases(build.forward, seed)))

    @override
    def case(self, build: BackwardBuild, choice: Choice, rng: random.Random, brief: bool = False) -> Case:
        plain = {**choice, REGIME: forward_regime(choice[REGIME])}
        return backward_case(self._forward.case(build.forward, plain, rng, brief), choice[REGIME])


# Attention makes cases smaller, but it knows neither builds of gradients nor their regimes.


def simpler(case: Case, builds: Builds) -> Iterator[Case]:
    """Cases that are smaller in one respect: attention's own regime first, then what makes attention's case smaller."""
    regime = case.regime
    if regime != forward_regime(regime):
        yield dataclasses.replace(case, regime=forward_regime(regime))
    for smaller in FORWARD.simpler(_forward_case(case), _forward_builds(builds)):
        yield backward_case(smaller, regime if smaller.regime == forward_regime(regime) else None)


def size(case: Case, builds: Builds) -> tuple[object, ...]:
    """How large a case is: the size of attention's case, then how plain the regime is."""
    sizes = FORWARD.size(_forward_case(case), _forward_builds(builds))
    return (*sizes, list(REGIMES).index(case.regime))


def enlarged(case: Case, builds: Builds) -> Case:
    """A larger case with the same inputs, as attention enlarges it, in which a pattern has room."""
    return backward_case(FORWARD.enlarged(_forward_case(case), _forward_builds(builds)), case.regime)


def probed_axes(case: Case, builds: Builds) -> list[ProbedAxis]:
    """Keys, then rows, each alone."""
    return [
        dataclasses.replace(axis, at=functools.partial(_backward_at, axis, case.regime))
        for axis in FORWARD.probed_axes(_forward_case(case), _forward_builds(builds))
    ]


def _backward_at(axis: ProbedAxis, regime: str, length: int) -> Case:
    return backward_case(axis.at(length), regime)


def _forward_case(case: Case) -> Case:
    return dataclasses.replace(case, regime=forward_regime(case.regime))


def _forward_builds(builds: Builds) -> Builds:
    return Builds([build.forward for build in builds.known])  # type: ignore[attr-defined]


def cases(
    builds: Sequence[BackwardBuild], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
) -> st.SearchStrategy[Case]:
    """Cases of these builds: three in four as attention draws them or with one of the regimes of gradients."""
    from hypothesis import strategies as st  # optional

    forward = FORWARD.cases([build.forward for build in builds], most_tiles, checks, takes)
    return st.builds(backward_case, forward, st.sampled_from((None, None, None, *own_regimes())))
