"""What campaigns of ring attention meet: attention's own cases, as one sequence over 1 to 8 devices in each order.

A case of attention with as many rows as keys keeps its length; another one becomes a square with as much work.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.model.cases.axes import Axes, Choice, ProbedAxis, Value
from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.cases.wrapped_build import WrappedBuild
from harness.model.operation import operation_named
from harness.operations.attention.masks import NO_MASK, parse_mask
from harness.operations.attention.sizes import Sizes
from harness.operations.ring_attention.order import CONTIGUOUS, ORDERS, STRIPED, chunks_per_device
from harness.operations.ring_attention.problem import RingProblem
from harness.support.override import override

if TYPE_CHECKING:
    from hypothesis import strategies as st

FORWARD = operation_named("attention")
DEVICES, ORDER = "devices", "order"
DEVICE_COUNTS: Mapping[str, tuple[int, ...]] = {"2": (2,), "3 or 4": (3, 4), "5 to 8": (5, 6, 7, 8), "1": (1,)}
MOST_DRAWN = 8
PLAIN_DEVICES = 3
"""An odd number, so that lengths are rarely multiples, and more than two, so that blocks are forwarded."""
TAKEN = ("causal",)
MOST_BLOCKS = 80
"""Blocks of a case, each of which takes two launches: up to 8 devices, or 6 in zigzag order under a causal mask."""
TILE = 64
"""Rows, keys and elements that a block of threads works for at least, however few there are."""
RUNS_OF_CHECK = 4
MOST_VISITS, BRIEF_VISITS = 512, 256
"""Tiles that all blocks of a case visit together, of all heads: a second on the emulator, and of a brief case."""


@dataclass(frozen=True)
class RingBuild(WrappedBuild):
    """What attention's kernels have compiled in, for the blocks of a ring."""

    @property
    @override
    def plain_problem(self) -> RingProblem:
        return ring(self.forward.plain_problem, PLAIN_DEVICES, CONTIGUOUS)

    @override
    def of_problem(self, problem: Any) -> RingBuild:
        return dataclasses.replace(self, forward=self.forward.of_problem(problem.whole))

    @override
    def tiles(self, problem: RingProblem) -> tuple[int, ...]:
        tiles: tuple[int, ...] = self.forward.tiles(problem.whole)
        return tiles


def builds_of(seed: int) -> tuple[RingBuild, ...]:
    """Attention's builds of a campaign with that seed."""
    return tuple(map(RingBuild, FORWARD.builds_of(seed)))


def ring(problem: Any, devices: int, order: str) -> RingProblem:
    """Return the problem of ring attention like a problem of attention, long enough for so many devices."""
    length = max(math.isqrt(problem.q_len * problem.kv_len), devices * chunks_per_device(order))
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(Sizes)}
    mask = parse_mask("causal") if problem.causal else NO_MASK
    return RingProblem(**{**fields, "q_len": length, "kv_len": length, "mask": mask}, devices=devices, row_order=order)


def ring_case(case: Case, devices: int, order: str) -> Case:
    """Return a case of ring attention like a case of attention, without the edits that lie outside of its inputs."""
    return case.with_problem(ring(case.problem, devices, order))


def blocks(devices: int, order: str, causal: bool) -> int:
    """Return how many blocks some row of a sequence sees, at most."""
    chunks = devices * chunks_per_device(order)
    return chunks * (chunks + 1) // 2 if causal and order != STRIPED else chunks * chunks


def visits(problem: RingProblem) -> int:
    """Return how many tiles all blocks of a problem visit, of all heads, in units of `TILE` rows, keys and elements."""
    chunks = [chunk for of_device in problem.chunks for chunk in of_device]
    tiles = sum(-(-len(chunk.rows) // TILE) for chunk in chunks)
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


class RingAxes(Axes):
    """Attention's axes, with the number of devices and the order of rows."""

    def __init__(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]) -> None:
        """Arguments as of `Operation.axes`."""
        axes = FORWARD.axes(most_tiles, checks, [name for name in takes if name in TAKEN])
        assert axes is not None
        self._forward = axes

    @property
    @override
    def values(self) -> Mapping[str, Sequence[Value]]:
        weights = {"1": 0.3}
        counts = tuple(Value(name, weights.get(name, 1.0)) for name in DEVICE_COUNTS)
        return {**self._forward.values, DEVICES: counts, ORDER: tuple(map(Value, ORDERS))}

    @override
    def meet(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        own = (DEVICES, ORDER)
        return one[0] in own or other[0] in own or self._forward.meet(one, other)

    @override
    def takes_too_long(self, build: RingBuild, choice: Choice) -> bool:
        return self._forward.takes_too_long(build.forward, choice)

    @property
    @override
    def common(self) -> Sequence[Choice]:
        return self._forward.common

    @override
    def case(self, build: RingBuild, choice: Choice, rng: random.Random, brief: bool = False) -> Case:
        plain = {axis: name for axis, name in choice.items() if axis not in (DEVICES, ORDER)}
        case = self._forward.case(build.forward, plain, rng, brief)
        drawn = ring_case(case, rng.choice(DEVICE_COUNTS[choice[DEVICES]]), choice[ORDER])
        most = (BRIEF_VISITS if brief else MOST_VISITS) // (1 if case.check is None else RUNS_OF_CHECK)
        return drawn.with_problem(lighter(drawn.problem, most))


def simpler(case: Case, builds: Builds) -> Iterator[Case]:
    """Yield cases that are smaller in one respect: fewer devices, a plainer order, then as attention does."""
    p = case.problem
    for devices in range(1, p.devices):
        yield ring_case(_forward_case(case), devices, p.row_order)
    for order in list(ORDERS)[: list(ORDERS).index(p.row_order)]:
        yield ring_case(_forward_case(case), p.devices, order)
    for smaller in FORWARD.simpler(_forward_case(case), _forward_builds(builds)):
        yield ring_case(smaller, p.devices, p.row_order)


def size(case: Case, builds: Builds) -> tuple[object, ...]:
    """Return how large a case is: devices, the order, then the size of attention's case."""
    p = case.problem
    sizes = FORWARD.size(_forward_case(case), _forward_builds(builds))
    return p.devices, list(ORDERS).index(p.row_order), *sizes


def enlarged(case: Case, builds: Builds) -> Case:
    """Return a larger case with the same inputs, as attention enlarges it."""
    larger = FORWARD.enlarged(_forward_case(case), _forward_builds(builds))
    return ring_case(larger, case.problem.devices, case.problem.row_order)


def probed_axes(case: Case, builds: Builds) -> list[ProbedAxis]:
    """Return the length of the sequence, as the axis of keys."""
    devices, order = case.problem.devices, case.problem.row_order
    keys = FORWARD.probed_axes(_forward_case(case), _forward_builds(builds))[:1]
    return [dataclasses.replace(axis, at=functools.partial(_square_at, axis, devices, order)) for axis in keys]


def _square_at(axis: ProbedAxis, devices: int, order: str, length: int) -> Case:
    case = axis.at(length)
    square = dataclasses.replace(case.problem, q_len=length, kv_len=length)
    return ring_case(case.with_problem(square), devices, order)


def _forward_case(case: Case) -> Case:
    return case.with_problem(case.problem.whole)


def _forward_builds(builds: Builds) -> Builds:
    return Builds([build.forward for build in builds.known])  # type: ignore[attr-defined]


def cases(
    builds: Sequence[RingBuild], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
) -> st.SearchStrategy[Case]:
    """Return cases of these builds, as attention draws them but lighter, over 1 to 8 devices in any order."""
    from hypothesis import strategies as st  # optional

    taken = [name for name in takes if name in TAKEN]
    forward = FORWARD.cases([build.forward for build in builds], most_tiles, checks, taken)
    # Shrinks to two devices, the fewest that exchange anything.
    counts = st.sampled_from([2, 3, 1, *range(4, MOST_DRAWN + 1)])
    return st.builds(ring_case, forward, counts, st.sampled_from(list(ORDERS))).map(_lighter_case)


def _lighter_case(case: Case) -> Case:
    return case.with_problem(lighter(case.problem, BRIEF_VISITS))
