"""Converts the results of comparisons and benchmarks to rows of the store; other studies make their own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.execution.judging.verdict import FAIL, PASS, UNDECIDED
from harness.execution.outcome import Comparison
from harness.execution.planning.tiles import tile_of
from harness.execution.planning.variant_calls import make_plan
from harness.execution.protocol import Device
from harness.execution.results.kept_row import KeptRow
from harness.execution.results.kernel_digest import plan_digest
from harness.execution.timings import BenchResult
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import tile_text
from harness.model.variant import Variant
from harness.support.errors import SandboxError

RAN = (PASS, UNDECIDED, FAIL)
"""Verdicts of variants that produced an answer, so that their kernels are known."""


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
        return Made(None if tile is None else tile_text(tile), plan_digest(make_plan(variant, problem), problem, arch))
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
                variant=row.variant,
                algorithm=row.algorithm,
                backend=row.backend,
                tile=row.tile,
                asked_tile=comparison.tile,
                kernel_digest=None if made is None else made.kernel_digest,
                verdict=row.verdict,
                reason=row.reason,
                max_abs_error=row.max_abs_error,
                error_over_budget=row.worst_over_budget,
                error_over_expected=row.worst_over_expected,
                claimed_bytes=row.claimed_bytes,
                read_bytes=row.read_bytes,
                write_bytes=row.write_bytes,
                local_bytes=row.local_bytes,
                allocated_bytes=row.allocated_bytes,
                launches=row.launches,
                time_ms=row.time_ms,
                time_low_ms=row.time_low_ms,
                time_high_ms=row.time_high_ms,
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
                verdict=row.verdict,
                reason=row.reason,
                error_over_budget=row.error_over_budget,
                claimed_bytes=row.sector_bytes,
                time_ms=row.time_ms,
                time_low_ms=row.time_low_ms,
                time_high_ms=row.time_high_ms,
                sustained_ms=row.sustained_ms,
            )
        )
    return rows
