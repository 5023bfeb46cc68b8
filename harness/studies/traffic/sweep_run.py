"""Runs a sweep: every variant at every value, counted where that takes seconds, else as the variant claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.execution.planning import claimed_traffic, make_plan
from harness.execution.preparation import Preparation
from harness.execution.protocol import Executor
from harness.execution.tiles import tile_of, with_tile
from harness.model.plan import Plan
from harness.model.variant import Variant
from harness.operations.attention.inputs import draw_inputs
from harness.operations.attention.problem import Problem
from harness.options.sweep import Sweep, SweepPoint
from harness.support.errors import KernelFault, SandboxError, UnsupportedProblem
from harness.support.exception_place import where_and_what

LARGEST_COUNTED_FLOPS = 4e9
"""`auto` emulates up to here: a matter of seconds per variant and point."""
LARGEST_ALLOCATED_BYTES = 2**30


def run_sweep(
    variants: Sequence[Variant],
    sweep: Sweep,
    problems: Sequence[Problem],
    executor: Executor,
    *,
    count: str = "auto",
    regime: str = "normal",
    seed: int = 0,
    step: Callable[[str], None] = lambda name: None,
) -> tuple[SweepPoint, ...]:
    """Every variant at every value; `problems` has one problem per value. `count`: auto, always or never."""
    points = []
    for value, problem in zip(sweep.values, problems):
        tile = sweep.tile_at(value)
        here = [with_tile(variant, tile) for variant in variants] if tile else variants
        counted = count == "always" or (count == "auto" and problem.flops <= LARGEST_COUNTED_FLOPS)
        with Preparation(here if counted else (), problem, executor) as preparation:
            for variant in here:
                step(f"{sweep.field} {value}, {variant.name}")
                blank = SweepPoint(variant.name, variant.algorithm, variant.backend, value, problem, None)
                if counted:
                    preparation.wait(variant)
                points.append(_careful(blank, variant, executor if counted else None, count, regime, seed))
    return tuple(points)


def _careful(
    blank: SweepPoint, variant: Variant, executor: Executor | None, count: str, regime: str, seed: int
) -> SweepPoint:
    try:
        return _measure(blank, variant, executor, count, regime, seed)
    except UnsupportedProblem as refusal:
        return replace(blank, reason=refusal.reason)
    except SandboxError as error:
        if isinstance(error, KernelFault) and error.kind == "interrupted":
            raise KeyboardInterrupt from error
        return replace(blank, reason=str(error), failed=True)
    except Exception as error:
        return replace(blank, reason=where_and_what(error), failed=True)


def _measure(
    blank: SweepPoint, variant: Variant, executor: Executor | None, count: str, regime: str, seed: int
) -> SweepPoint:
    plan = make_plan(variant, blank.problem)
    blank = replace(blank, tile=tile_of(variant, blank.problem))
    claim = claimed_traffic(variant, blank.problem)
    if executor is None or not (count == "always" or _fits(plan, blank.problem)):
        if claim is None:
            return replace(blank, reason="not counted, and it claims nothing")
        return replace(blank, source="claimed", read_bytes=claim.read_bytes, write_bytes=claim.write_bytes)
    inputs = draw_inputs(blank.problem, regime, seed)
    execution = executor.run(blank.problem, plan, inputs)
    read, write = execution.read_bytes, execution.write_bytes
    sites = [site for launch in execution.launches for site in launch.traffic or () if site.buffer != "local"]
    return replace(
        blank,
        source="counted",
        read_bytes=read,
        write_bytes=write,
        requested_bytes=sum(s.requested_bytes * (2 if s.kind == "atomic" else 1) for s in sites),
        claim_holds=None if claim is None else (claim.read_bytes, claim.write_bytes) == (read, write),
    )


def _fits(plan: Plan, problem: Problem) -> bool:
    return plan.allocated_bytes(problem) <= LARGEST_ALLOCATED_BYTES
