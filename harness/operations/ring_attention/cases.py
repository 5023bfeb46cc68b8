"""What campaigns of rings meet: cases of attention or of its gradients, as one sequence over 1 to 8 devices.

A case of attention with as many rows as keys keeps its length; another one becomes a square with as much work.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from harness.model.cases.axes import Choice, ProbedAxis, Value
from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.operations._across_devices.cases import (
    DEVICE_COUNTS,
    DEVICES,
    DRAWN_COUNTS,
    PLAIN_DEVICES,
    DividedAxes,
    DividedBuild,
    DividedCases,
    taken,
)
from harness.operations._across_devices.order import CONTIGUOUS, ORDERS, STRIPED, chunks_per_device
from harness.operations.attention.masks import NO_MASK, parse_mask
from harness.operations.attention.sizes import Sizes
from harness.operations.ring_attention.problem import RingProblem
from harness.support.override import override

if TYPE_CHECKING:
    from hypothesis import strategies as st

ORDER = "order"
MOST_BLOCKS = 80
"""Blocks of a case, each of which takes two launches: up to 8 devices, or 6 in zigzag order under a causal mask."""
TILE = 64
"""Rows, keys and elements that a block of threads works for at least, however few there are."""
RUNS_OF_CHECK = 4
MOST_VISITS, BRIEF_VISITS = 512, 256
"""Tiles that all blocks of a case visit together, of all heads: a second on the emulator, and of a brief case."""


@dataclass(frozen=True)
class RingBuild(DividedBuild):
    """What attention's kernels have compiled in, for the blocks of a ring."""

    problem_class: ClassVar[type[RingProblem]] = RingProblem

    @property
    @override
    def plain_problem(self) -> RingProblem:
        return ring(self.problem_class, self.forward.plain_problem, PLAIN_DEVICES, CONTIGUOUS)


def ring(problem_class: type[RingProblem], problem: Any, devices: int, order: str) -> RingProblem:
    """Return the problem of a ring like one of attention or its gradients, long enough for so many devices."""
    length = max(math.isqrt(problem.q_len * problem.kv_len), devices * chunks_per_device(order))
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(Sizes)}
    sizes = {**fields, "q_len": length, "kv_len": length, "mask": parse_mask("causal") if problem.causal else NO_MASK}
    return problem_class(**sizes, devices=devices, row_order=order)


def blocks(devices: int, order: str, causal: bool) -> int:
    """Return how many blocks some row of a sequence sees, at most."""
    chunks = devices * chunks_per_device(order)
    return chunks * (chunks + 1) // 2 if causal and order != STRIPED else chunks * chunks


def visits(problem: RingProblem) -> int:
    """Return how many tiles all blocks of a problem visit, of all heads, in units of `TILE` rows, keys and elements."""
    tiles = sum(-(-len(chunk.rows) // TILE) for chunk in problem.all_chunks)
    shares = 2 if problem.causal else 1
    return problem.batch * problem.heads * tiles * tiles * -(-problem.head_dim // TILE) // shares


def lighter(problem: RingProblem, most_visits: int) -> RingProblem:
    """Return the problem with fewer sequences, then heads, then rows, until it costs no more than that, if it can.

    It has at most `MOST_BLOCKS`, for which it gets fewer devices.
    """
    p = problem
    while blocks(p.devices, p.row_order, p.causal) > MOST_BLOCKS:
        p = dataclasses.replace(p, devices=p.devices - 1)
    while visits(p) > most_visits:
        least = p.devices * chunks_per_device(p.row_order)
        if p.batch > 1:
            p = dataclasses.replace(p, batch=p.batch // 2)
        elif p.kv_heads_count > 1:
            p = dataclasses.replace(p, heads=p.group, kv_heads=1)
        elif p.heads > 1:
            p = dataclasses.replace(p, heads=p.heads // 2)
        elif p.q_len > max(least, TILE):
            p = dataclasses.replace(p, q_len=max(least, p.q_len // 2), kv_len=max(least, p.q_len // 2))
        else:
            break
    return p


class RingAxes(DividedAxes):
    """The other operation's axes, with the number of devices and the order of rows."""

    _cases: RingCases

    @property
    @override
    def values(self) -> Mapping[str, Sequence[Value]]:
        return {**super().values, ORDER: tuple(map(Value, ORDERS))}

    @override
    def case(self, build: RingBuild, choice: Choice, rng: random.Random, brief: bool = False) -> Case:
        plain = {axis: name for axis, name in choice.items() if axis not in (DEVICES, ORDER)}
        case = self.inner.case(build.forward, plain, rng, brief)
        drawn = self._cases.ring_case(case, rng.choice(DEVICE_COUNTS[choice[DEVICES]]), choice[ORDER])
        most = (BRIEF_VISITS if brief else MOST_VISITS) // (1 if case.check is None else RUNS_OF_CHECK)
        return drawn.with_problem(lighter(drawn.problem, most))


@dataclass(frozen=True, eq=False)
class RingCases(DividedCases):
    """Cases of a ring, made of those of attention or its gradients."""

    build: type[RingBuild]

    @property
    @override
    def problem_class(self) -> type[RingProblem]:
        return self.build.problem_class

    def ring_case(self, case: Case, devices: int, order: str) -> Case:
        """Return a case like one of the other operation, without the edits that lie outside of its inputs."""
        return case.with_problem(ring(self.problem_class, case.problem, devices, order))

    @override
    def divided(self, problem: Any, like: RingProblem) -> RingProblem:  # type: ignore[override]
        return ring(self.problem_class, problem, like.devices, like.row_order)

    @override
    def simpler(self, case: Case, builds: Builds) -> Iterator[Case]:
        """Yield cases with fewer devices, with a plainer order, then what makes the other operation's case smaller."""
        p = case.problem
        for devices in range(1, p.devices):
            yield self.ring_case(self.unwrapped(case), devices, p.row_order)
        for order in list(ORDERS)[: list(ORDERS).index(p.row_order)]:
            yield self.ring_case(self.unwrapped(case), p.devices, order)
        yield from super().simpler(case, builds)

    @override
    def size(self, case: Case, builds: Builds) -> tuple[object, ...]:
        """Return the number of devices, the order, then the size of the other operation's case."""
        p = case.problem
        return p.devices, list(ORDERS).index(p.row_order), *super().size(case, builds)

    @override
    def probed_axes(self, case: Case, builds: Builds) -> list[ProbedAxis]:
        """Return the length of the sequence, as the axis of keys."""
        return [axis for axis in super().probed_axes(case, builds) if axis.name == "kv_len"]

    @override
    def at(self, axis: ProbedAxis, case: Case, length: int) -> Case:
        longer = axis.at(length)
        square = dataclasses.replace(longer.problem, q_len=length, kv_len=length)
        return self.wrapped(longer.with_problem(square), case)

    @override
    def axes(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]) -> RingAxes:
        return RingAxes(self, most_tiles, checks, takes)

    @override
    def cases(
        self, builds: Sequence[RingBuild], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
    ) -> st.SearchStrategy[Case]:
        """Return cases of these builds, as the other operation draws them but lighter, over 1 to 8 devices."""
        from hypothesis import strategies as st  # optional

        inner = self.inner.cases([build.forward for build in builds], most_tiles, checks, taken(takes))
        drawn = st.builds(self.ring_case, inner, st.sampled_from(DRAWN_COUNTS), st.sampled_from(list(ORDERS)))
        return drawn.map(_lighter_case)


def _lighter_case(case: Case) -> Case:
    return case.with_problem(lighter(case.problem, BRIEF_VISITS))
