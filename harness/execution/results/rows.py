"""Converts the results of comparisons and benchmarks to rows of the store; other studies make their own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.compilers.remote_kernel import RemoteArgument
from harness.execution.judging.verdict import FAIL, PASS, UNDECIDED
from harness.execution.outcome import Comparison
from harness.execution.planning.tiles import tile_of
from harness.execution.planning.variant_calls import compiled_launches, make_plan
from harness.execution.protocol import Device
from harness.execution.results.kept_row import KeptRow
from harness.execution.timings import BenchResult
from harness.model.plan import Launch, Plan
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import tile_text
from harness.model.variant import Variant
from harness.ptx.statements import canonical_text
from harness.support.errors import SandboxError

RAN = (PASS, UNDECIDED, FAIL)
"""Verdicts of variants that produced an answer, so that their kernels are known."""
_COMPARED = (
    "variant", "algorithm", "backend", "tile", "verdict", "reason", "max_abs_error", "claimed_bytes", "read_bytes",
    "write_bytes", "local_bytes", "allocated_bytes", "launches", "time_ms", "time_low_ms", "time_high_ms",
)  # fmt: skip
_TIMED = ("verdict", "reason", "error_over_budget", "time_ms", "time_low_ms", "time_high_ms", "sustained_ms")
"""Fields that `KeptRow` shares with rows of comparisons and of benchmarks."""


@dataclass(frozen=True)
class Made:
    """Properties of a variant's plan that not every study's rows contain."""

    tile: str | None
    """The tile sizes used; None if the variant declares none."""
    kernel_digest: str | None
    """The digest by `plan_digest`; None if it cannot be computed."""


def made_of(variant: Variant, problem: BaseProblem, arch: str) -> Made:
    """Plan the variant again, using the compilers' caches. Failures of the variant are not raised."""
    try:
        tile = tile_of(variant, problem)
        plan = make_plan(variant, problem, arch)
        return Made(None if tile is None else tile_text(tile), plan_digest(plan, problem, arch))
    except SandboxError:
        return Made(None, None)


def problem_text(problem: BaseProblem) -> str:
    """All fields of a problem, as JSON."""
    return json.dumps(problem.to_fields())


def what_was_run(study: str, problem: BaseProblem, regime: str | None, seed: int | None) -> dict[str, Any]:
    """The fields of a row that identify the computation."""
    return {
        "study": study,
        "operation": problem.operation,
        "problem": problem_text(problem),
        "headline": problem.headline,
        "regime": regime,
        "seed": seed,
        "compulsory_bytes": problem.compulsory_bytes,
    }


def where_it_ran(device: Device) -> dict[str, Any]:
    """The fields of a row that identify the device."""
    return {"device_kind": device.kind, "device": device.name, "arch": device.arch}


def who_ran(variant: Variant) -> dict[str, Any]:
    """The fields of a row that identify the variant."""
    return {"variant": variant.name, "algorithm": variant.algorithm, "backend": variant.backend}


def comparison_rows(study: str, comparison: Comparison, variants: Iterable[Variant]) -> list[KeptRow]:
    """Rows of the compared variants, and of those that could not be loaded."""
    named = {variant.name: variant for variant in variants}
    given = what_was_run(study, comparison.problem, comparison.regime, comparison.seed)
    given |= where_it_ran(comparison.device)
    rows = []
    for row in comparison.rows:
        variant = named.get(row.variant)
        if variant is None and row.algorithm is not None:
            continue
        made = None
        if variant is not None and row.verdict in RAN:
            made = made_of(variant, comparison.problem, comparison.device.arch)
        rows.append(
            KeptRow(
                **given,
                **{name: getattr(row, name) for name in _COMPARED},
                asked_tile=comparison.tile,
                kernel_digest=None if made is None else made.kernel_digest,
                error_over_budget=row.worst_over_budget,
                error_over_expected=row.worst_over_expected,
                findings=None if row.findings is None else len(row.findings),
            )
        )
    return rows


def bench_rows(
    study: str, result: BenchResult, variants: Iterable[Variant], asked_tile: str | None = None
) -> list[KeptRow]:
    """Rows of the timed variants and of libraries, whose kernels are unknown."""
    named: Mapping[str, Variant] = {variant.name: variant for variant in variants}
    given = what_was_run(study, result.problem, result.regime, result.seed) | where_it_ran(result.device)
    rows = []
    for row in result.rows:
        variant, made = named.get(row.variant), Made(None, None)
        if variant is not None and row.verdict in RAN:
            made = made_of(variant, result.problem, result.device.arch)
        who = {"variant": row.variant} if variant is None else who_ran(variant)
        rows.append(
            KeptRow(
                **given,
                **who,
                tile=made.tile,
                asked_tile=None if variant is None else asked_tile,
                kernel_digest=made.kernel_digest,
                driver=result.driver,
                **{name: getattr(row, name) for name in _TIMED},
                claimed_bytes=row.sector_bytes,
            )
        )
    return rows


DIGITS = 16
"""Number of hexadecimal digits. Two kernels of a variant's history collide with a probability of 2^-64."""


def plan_digest(plan: Plan, problem: BaseProblem, arch: str) -> str:
    """Digest of everything that determines the behaviour of the plan's launches on `arch`, such as `sm_90`.

    It covers each kernel's PTX, grid, block, cluster, shared memory and arguments. It does not depend on comments,
    source locations or module names, but it does depend on the compiler. Raises what planning and compiling raise.
    """
    parts = [part for launch, compiled in compiled_launches(plan, problem, arch) for part in (
        *_how_it_is_launched(launch), str(compiled.max_registers), canonical_text(compiled.ptx)
    )]  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGITS]


def _how_it_is_launched(launch: Launch) -> Iterator[str]:
    yield f"{_numbers(launch.grid)} {_numbers(launch.block)} {int(launch.shared_bytes)}"
    yield "" if launch.cluster is None else str(_numbers(launch.cluster))
    yield from map(_argument, launch.args)


def _numbers(extents: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int, extents))


def _argument(argument: Any) -> str:
    if isinstance(argument, RemoteArgument):
        return argument.type_name  # its value stays in its own process
    if isinstance(argument, np.void):
        return argument.tobytes().hex()
    kind = argument.dtype if isinstance(argument, np.generic) else type(argument).__name__
    return f"{kind} {argument!r}"
