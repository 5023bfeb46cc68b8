"""What campaigns of gradients meet: attention's own cases, each with a gradient of O, and harder gradients besides."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.model.cases.axes import REGIME, Choice, Value, WrappedAxes
from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.cases.wrapped_build import WrappedBuild
from harness.model.cases.wrapped_cases import WrappedCases
from harness.model.operation import operation_named
from harness.operations.attention.layout import DRAWN_OF_GRADIENTS, Layout
from harness.operations.attention.score_terms import SLOPES, TERMS
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
        return dataclasses.replace(self, forward=self.forward.with_features(takes, place))

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

    A mask that differs between heads becomes that of the first one. `regime`: that of the gradients; None: the case's
    own.
    """
    edits = tuple(edit for edit in case.edits if edit.array in EDITED)
    problem = dataclasses.replace(case.problem, mask=case.problem.mask.of_head(0))
    return dataclasses.replace(case, problem=backward(problem), edits=edits, regime=regime or case.regime)


def with_layout_of_gradients(case: Case, gradients: Layout | None) -> Case:
    """The case with that layout of gradients, or the most similar one that its shapes have; as it is if it is dense."""
    p = case.problem
    if p.layout.is_dense:
        return case
    layout = dataclasses.replace(p.layout, gradients=gradients)
    return dataclasses.replace(case, problem=dataclasses.replace(p, layout=layout.fitted_to(p.shapes)))


def own_regimes() -> list[str]:
    """The regimes that attention itself does not have."""
    return [name for name in REGIMES if forward_regime(name) != name]


class BackwardAxes(WrappedAxes):
    """Attention's axes, with the regimes of gradients."""

    def __init__(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]) -> None:
        """Arguments as of `Operation.axes`."""
        super().__init__(FORWARD.axes(most_tiles, checks, takes))

    @property
    @override
    def values(self) -> Mapping[str, Sequence[Value]]:
        values = self.inner.values
        return {**values, REGIME: (*values[REGIME], *map(Value, own_regimes()))}

    @property
    @override
    def long(self) -> Sequence[Choice]:
        return self.inner.long

    @override
    def far_cases(self, builds: Sequence[BackwardBuild], seed: int) -> Sequence[Case]:
        # Kernels get another batch, and the gradients of these terms are sums over it.
        summed = {term.field for term in TERMS if term.has_gradient}
        kept = [build.forward for build in builds if not summed & set(build.forward.features)]
        return tuple(map(backward_case, self.inner.far_cases(kept, seed))) if kept else ()

    @override
    def case(self, build: BackwardBuild, choice: Choice, rng: random.Random, brief: bool = False) -> Case:
        plain = {**choice, REGIME: forward_regime(choice[REGIME])}
        case = backward_case(self.inner.case(build.forward, plain, rng, brief), choice[REGIME])
        return case if case.problem.layout.is_dense else with_layout_of_gradients(case, rng.choice(DRAWN_OF_GRADIENTS))


class BackwardCases(WrappedCases):
    """Attention makes cases smaller, but it knows neither builds of gradients nor their regimes."""

    inner = FORWARD

    @override
    def wrapped(self, case: Case, like: Case) -> Case:
        return backward_case(case, like.regime if case.regime == forward_regime(like.regime) else None)

    @override
    def unwrapped(self, case: Case) -> Case:
        return dataclasses.replace(case, regime=forward_regime(case.regime))

    @override
    def simpler(self, case: Case, builds: Builds) -> Iterator[Case]:
        """Yield attention's own regime first, then what makes attention's case smaller."""
        regime = forward_regime(case.regime)
        if regime != case.regime:
            yield dataclasses.replace(case, regime=regime)
        yield from super().simpler(case, builds)

    @override
    def size(self, case: Case, builds: Builds) -> tuple[object, ...]:
        """Return the size of attention's case, then how plain the regime is."""
        return (*super().size(case, builds), list(REGIMES).index(case.regime))


CASES = BackwardCases()


def cases(
    builds: Sequence[BackwardBuild], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
) -> st.SearchStrategy[Case]:
    """Cases of these builds: three in four as attention draws them or with one of the regimes of gradients."""
    from hypothesis import strategies as st  # optional

    forward = FORWARD.cases([build.forward for build in builds], most_tiles, checks, takes)
    drawn = st.builds(backward_case, forward, st.sampled_from((None, None, None, *own_regimes())))
    return st.builds(with_layout_of_gradients, drawn, st.sampled_from(DRAWN_OF_GRADIENTS))
