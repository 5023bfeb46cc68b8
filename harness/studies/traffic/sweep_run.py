"""Runs a sweep: every variant at every value, counted where that takes seconds, else as the variant claims."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from harness.execution.attempt import attempt
from harness.execution.preparation import Preparation
from harness.execution.protocol import Executor
from harness.execution.tiles import with_tile
from harness.model.operation import draw_inputs
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.options.sweep import Sweep, Value
from harness.studies.traffic.sweep_point import SweepPoint

Inputs = Callable[[], Mapping[str, np.ndarray]]
LARGEST_COUNTED_FLOPS = 4e9
"""`auto` emulates up to here: a matter of seconds per variant and point."""
LARGEST_ALLOCATED_BYTES = 2**30
NOTHING_KNOWN: Mapping[str, Mapping[Value, SweepPoint]] = MappingProxyType({})


def run_sweep(
    variants: Sequence[Variant],
    sweep: Sweep,
    problems: Sequence[BaseProblem],
    executor: Executor,
    *,
    count: str = "auto",
    regime: str = "normal",
    seed: int = 0,
    known: Mapping[str, Mapping[Value, SweepPoint]] = NOTHING_KNOWN,
    step: Callable[[str], None] = lambda name: None,
) -> tuple[SweepPoint, ...]:
    """Every variant at every value; `problems` has one problem per value. `count`: auto, always or never.

    `known`: points of variants, by name, that need not run again.
    """
    points = []
    for value, problem in zip(sweep.values, problems):
        tile = sweep.tile_at(value)
        here = [with_tile(variant, tile) for variant in variants] if tile else variants
        counted = count == "always" or (count == "auto" and problem.flops <= LARGEST_COUNTED_FLOPS)
        inputs = functools.cache(functools.partial(draw_inputs, problem, regime, seed))
        fresh = [variant for variant in here if variant.name not in known]
        with Preparation(fresh if counted else (), problem, executor) as preparation:
            for variant in here:
                if variant.name in known:
                    points.append(known[variant.name][value])
                    continue
                step(f"{sweep.field} {value}, {variant.name}")
                blank = SweepPoint(variant.name, variant.algorithm, variant.backend, value, problem, None)
                if counted:
                    preparation.wait(variant)
                points.append(_point(blank, variant, executor if counted else None, count == "always", inputs))
    return tuple(points)


def _point(blank: SweepPoint, variant: Variant, executor: Executor | None, always: bool, inputs: Inputs) -> SweepPoint:
    done = attempt(
        variant,
        blank.problem,
        executor,
        inputs,
        runs=lambda plan: always or plan.allocated_bytes(blank.problem) <= LARGEST_ALLOCATED_BYTES,
    )
    blank = replace(blank, tile=done.tile)
    if done.refusal is not None or done.error is not None:
        return replace(blank, reason=done.reason, supported=done.refusal is None, failed=done.error is not None)
    claim, counted = done.claim, done.counted
    if counted is None:
        if claim is None:
            failed = done.claim_failure is not None
            return replace(blank, reason=done.claim_failure or "not counted, and it claims nothing", failed=failed)
        return replace(blank, source="claimed", read_bytes=claim.read_bytes, write_bytes=claim.write_bytes)
    sites = [site for launch in counted.launches for site in launch.traffic or () if site.buffer != "local"]
    return replace(
        blank,
        source="counted",
        read_bytes=counted.read_bytes,
        write_bytes=counted.write_bytes,
        requested_bytes=sum(s.requested_bytes * (2 if s.kind == "atomic" else 1) for s in sites),
        claim_holds=done.claim_holds,
    )
