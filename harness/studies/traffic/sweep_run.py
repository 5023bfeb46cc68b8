"""Runs a sweep of every variant at every value. Bytes are counted if that takes a few seconds at most."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.planning.preparation import Preparation
from harness.execution.planning.tiles import with_tile
from harness.execution.protocol import Executor
from harness.execution.run_settings import DEFAULT_SETTINGS, RunSettings
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.options.resume import UnfinishedWork
from harness.options.sweep import Sweep, Value
from harness.studies.traffic.sweep_point import SweepPoint
from harness.support.memory_units import GIB

Ask = Callable[[], Question]
LARGEST_COUNTED_FLOPS = 4e9
"""With `auto`, bytes are counted on the emulator up to this size in FLOP: seconds per variant and point."""
LARGEST_ALLOCATED_BYTES = GIB
Place = tuple[str, Value]
"""A variant's name and a value."""
NOTHING_KNOWN: Mapping[Place, SweepPoint] = MappingProxyType({})


def run_sweep(
    variants: Sequence[Variant],
    sweep: Sweep,
    problems: Sequence[BaseProblem],
    executor: Executor,
    settings: RunSettings = DEFAULT_SETTINGS,
    *,
    known: Mapping[Place, SweepPoint] = NOTHING_KNOWN,
    step: Callable[[str], None] = lambda name: None,
    done: Callable[[Place, SweepPoint], None] = lambda place, point: None,
) -> tuple[SweepPoint, ...]:
    """Run every variant at every value. `problems` has one problem per value; `settings.count` says which are counted.

    Points in `known` are not run; `done` is called with each other one.
    """
    points = []
    for value, problem in zip(sweep.values, problems):
        tile = sweep.tile_at(value)
        here = [with_tile(variant, tile) for variant in variants] if tile else variants
        counted = is_counted(problem, settings.count)
        ask = asked_once(problem, settings)
        fresh = [variant for variant in here if (variant.name, value) not in known]
        with Preparation(fresh if counted else (), problem, executor) as preparation:
            for variant in here:
                place = variant.name, value
                if place in known:
                    points.append(known[place])
                    continue
                step(f"{sweep.field} {value}, {variant.name}")
                if counted:
                    preparation.wait(variant)
                points.append(point_of(variant, value, problem, executor, settings.count, ask))
                done(place, points[-1])
    return tuple(points)


class UnfinishedSweep:
    """The finished points of a sweep."""

    def __init__(
        self, work: UnfinishedWork, variants: Sequence[Variant], sweep: Sweep, problems: Sequence[BaseProblem]
    ) -> None:
        """`problems` has one problem per value."""
        self._work = work
        self.known: dict[Place, SweepPoint] = {}
        """Points from before the interruption."""
        for value, problem in zip(sweep.values, problems):
            for variant in variants:
                point = work.known(variant.name, value)
                if isinstance(point, SweepPoint):
                    self.known[variant.name, value] = replace(point, problem=problem)

    def done(self, place: Place, point: SweepPoint) -> None:
        """Store a point unless it failed, since a failure may be this machine's fault and is repeated."""
        if not point.failed:
            self._work.finish(point, *place)


def asked_once(problem: BaseProblem, settings: RunSettings) -> Ask:
    """A function that computes the inputs and the answer on the first call, and then returns them for all variants."""
    return functools.cache(functools.partial(Question.draw, problem, settings.regime, settings.seed))


def is_counted(problem: BaseProblem, count: str) -> bool:
    """Whether points at this problem run on the emulator."""
    return count == "always" or (count == "auto" and problem.flops <= LARGEST_COUNTED_FLOPS)


def blank_point(variant: Variant, value: Value, problem: BaseProblem) -> SweepPoint:
    """A point without any known figures."""
    return SweepPoint(variant.name, variant.algorithm, variant.backend, value, problem, None)


def point_of(
    variant: Variant, value: Value, problem: BaseProblem, executor: Executor, count: str, ask: Ask
) -> SweepPoint:
    """Compute one variant's point at one value. The variant already has the requested tile sizes."""
    blank, always = blank_point(variant, value, problem), count == "always"
    done = attempt(
        variant,
        problem,
        executor if is_counted(problem, count) else None,
        question=ask,
        runs=lambda plan: always or plan.allocated_bytes(problem) <= LARGEST_ALLOCATED_BYTES,
    )
    blank = replace(blank, tile=done.tile)
    if done.refusal is not None or done.error is not None:
        return replace(blank, reason=done.reason, supported=done.refusal is None, failed=done.error is not None)
    claim, counted = done.claim, done.counted
    if counted is None:
        if claim is None:
            failed = done.claim_failure is not None
            return replace(blank, reason=done.claim_failure or "not counted, and it has no claim", failed=failed)
        return replace(blank, source="claimed", read_bytes=claim.read_bytes, write_bytes=claim.write_bytes)
    sites = [site for launch in counted.launches for site in launch.traffic or () if site.buffer != "local"]
    return replace(
        blank,
        source="counted",
        read_bytes=counted.read_bytes,
        write_bytes=counted.write_bytes,
        local_bytes=(counted.local_read_bytes or 0) + (counted.local_write_bytes or 0),
        requested_bytes=sum(s.requested_bytes * (2 if s.kind == "atomic" else 1) for s in sites),
        uses_tensor_cores=counted.uses_tensor_cores,
        claim_holds=done.claim_holds,
        answer_failure="; ".join(filter(None, (done.answer_failure, done.bytes_failure))) or None,
    )
