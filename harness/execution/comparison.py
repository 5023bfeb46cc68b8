"""The main job: every variant on one problem, checked against the oracle, counted, ranked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from typing import Any

from harness.execution.accuracy import Accuracy, measure_accuracy
from harness.execution.outcome import Comparison, Row
from harness.execution.planning import claimed_traffic, make_plan
from harness.execution.preparation import Preparation
from harness.execution.protocol import Device, Execution, Executor, Sanitizer
from harness.execution.question import Question
from harness.execution.tiles import tile_of
from harness.model.finding import Finding
from harness.model.plan import Plan
from harness.model.tile_sizes import tile_text
from harness.model.traffic import Traffic
from harness.model.variant import Variant
from harness.operations.attention.inputs import draw_inputs
from harness.operations.attention.problem import Problem
from harness.support.errors import KernelFault, SandboxError, UnsupportedProblem
from harness.support.exception_place import where_and_what
from harness.support.intervals import Interval, ranks

COUNT_MODES = ("auto", "always", "never")
LARGEST_COUNTED_FLOPS = 2e9
"""`auto` counts bytes on the emulator, beside a run on a GPU, up to here: a matter of seconds per variant."""

Step = Callable[[str], None]
"""Told what comes next, for a progress bar."""


def _ignore(step: str) -> None:
    pass


def counts_beside(mode: str, problem: Problem, device: Device) -> bool:
    """Whether bytes are to be counted on an emulator of their own, because `device` does not count."""
    assert mode in COUNT_MODES
    if device.kind == "emulator" or mode == "never":
        return False
    flops = 4.0 * problem.batch * problem.heads * problem.q_len * problem.kv_len * problem.head_dim
    return mode == "always" or flops <= LARGEST_COUNTED_FLOPS


def where_counted(executor: Executor, counter: Executor | None) -> Device | None:
    """The device that the bytes come from; None where they are not counted."""
    if executor.device.kind == "emulator":
        return executor.device
    return None if counter is None else counter.device


def compare(
    variants: Sequence[Variant],
    problem: Problem,
    executor: Executor,
    *,
    regime: str = "normal",
    seed: int = 0,
    counter: Executor | None = None,
    tile: str | None = None,
    sanitizer: Sanitizer | None = None,
    lost: Iterable[Row] = (),
    step: Step = _ignore,
) -> Comparison:
    """Run `variants` on one problem and return their rows, best first.

    `counter` counts bytes where `executor` does not. `tile` is what was asked of the variants' tile sizes. What
    `sanitizer` finds fails a variant. `lost` are rows of variants that could not even be loaded. Whatever goes wrong in
    a variant becomes its row; the others still come. Raises `UsageError` for a bad regime or seed.
    """
    step("the oracle")
    inputs = draw_inputs(problem, regime, seed)
    rows = []
    with Preparation(variants, problem, executor, counter) as preparation:
        question = Question.pose(problem, inputs)
        for variant in variants:
            step(variant.name)
            preparation.wait(variant)
            rows.append(judge(variant, question, executor, counter, sanitizer)[0])
    return Comparison(
        problem=problem,
        regime=regime,
        seed=seed,
        device=executor.device,
        counted_on=where_counted(executor, counter),
        tile=tile,
        sanitized_by=None if sanitizer is None else sanitizer.name,
        rows=rank([*rows, *lost], executor.device),
    )


def lost_row(name: str, reason: str, problem: Problem) -> Row:
    """The row of a module that could not be loaded."""
    return Row(
        variant=name,
        algorithm=None,
        backend=None,
        verdict="error",
        reason=reason,
        compulsory_bytes=problem.compulsory_bytes,
    )


def judge(
    variant: Variant,
    question: Question,
    executor: Executor,
    counter: Executor | None = None,
    sanitizer: Sanitizer | None = None,
) -> tuple[Row, Execution | None]:
    """One variant's row, not ranked yet, and what its run left behind (None where it did not get that far)."""
    problem = question.problem
    row = Row(
        variant=variant.name,
        algorithm=variant.algorithm,
        backend=variant.backend,
        verdict="error",
        compulsory_bytes=problem.compulsory_bytes,
    )
    execution: Execution | None = None
    try:
        plan = make_plan(variant, problem)
        row = dataclasses.replace(row, launches=len(plan.launches), allocated_bytes=plan.allocated_bytes(problem))
        if (tile := tile_of(variant, problem)) is not None:
            row = dataclasses.replace(row, tile=tile_text(tile))
        execution = executor.run(problem, plan, question.inputs)
        accuracy = measure_accuracy(execution.outputs, question.reference, question.budget(variant.numerics))
        row = dataclasses.replace(row, **_time_fields(execution.time_ms), **_accuracy_fields(accuracy))
        counted: Execution | None = execution
        if execution.read_bytes is None and counter is not None:
            counted, row = _count_beside(row, question, plan, counter)
        row = _with_traffic(row, variant, problem, counted)
        if sanitizer is not None:
            row = _with_findings(row, variant, question, plan, sanitizer)
        return row, execution
    except UnsupportedProblem as refusal:
        return dataclasses.replace(row, verdict="unsupported", reason=refusal.reason), None
    except SandboxError as error:
        if isinstance(error, KernelFault) and error.kind == "interrupted":
            raise KeyboardInterrupt from error
        found = None
        if isinstance(error, KernelFault) and sanitizer is not None:
            found = (*error.findings, Finding(kind=error.kind, message=str(error)))
        return dataclasses.replace(row, verdict="error", reason=str(error), findings=found), execution
    except Exception as error:
        return dataclasses.replace(row, verdict="error", reason=where_and_what(error)), execution


def rank(rows: Iterable[Row], device: Device) -> tuple[Row, ...]:
    """Passing rows first, by time on a GPU and by total bytes on the emulator; equals share a rank.

    Times are equal where their intervals overlap. A passing row whose time or bytes are unknown has no rank and comes
    after those that have one.
    """
    rows = list(rows)
    merits = {row.variant: merit for row in rows if row.verdict == "pass" and (merit := _merit(row, device))}
    told = ranks(merits)
    order = {"pass": 0, "fail": 1, "error": 2, "unsupported": 3}

    def place(row: Row) -> tuple[int, bool, int, float]:
        merit = merits.get(row.variant)
        return order[row.verdict], merit is None, told.get(row.variant, 0), merit.median if merit else 0.0

    ranked = (dataclasses.replace(row, rank=told.get(row.variant)) for row in rows)
    return tuple(sorted(ranked, key=place))


def _merit(row: Row, device: Device) -> Interval | None:
    """What a row is ranked by; bytes are exact."""
    if device.kind != "gpu":
        return None if row.total_bytes is None else Interval(row.total_bytes, row.total_bytes, row.total_bytes)
    if row.time_ms is None or row.time_low_ms is None or row.time_high_ms is None:
        return None
    return Interval(row.time_low_ms, row.time_ms, row.time_high_ms)


def _time_fields(time_ms: Interval | None) -> dict[str, Any]:
    return {} if time_ms is None else dict(zip(("time_low_ms", "time_ms", "time_high_ms"), astuple(time_ms)))


def _accuracy_fields(accuracy: Accuracy) -> dict[str, Any]:
    return {
        "verdict": "pass" if accuracy.passed else "fail",
        "reason": accuracy.reason,
        "max_abs_error": accuracy.max_abs_error,
        "error_over_budget": accuracy.error_over_budget,
        "error_over_expected": accuracy.error_over_expected,
        "lse_max_abs_error": accuracy.lse_max_abs_error,
        "lse_error_over_budget": accuracy.lse_error_over_budget,
        "lse_error_over_expected": accuracy.lse_error_over_expected,
    }


def _count_beside(row: Row, question: Question, plan: Plan, counter: Executor) -> tuple[Execution | None, Row]:
    """The same plan once more where bytes are counted. What fails there says nothing about the run on the GPU."""
    try:
        return counter.run(question.problem, plan, question.inputs), row
    except SandboxError as error:
        return None, dataclasses.replace(row, note=f"bytes not counted: {' '.join(str(error).split())}")


def _with_findings(row: Row, variant: Variant, question: Question, plan: Plan, sanitizer: Sanitizer) -> Row:
    """What the sanitizer found fails a variant whose answer passed. Where it cannot look, that is a note."""
    try:
        findings = sanitizer.check(variant, question.problem, plan, question.inputs)
    except SandboxError as error:
        if isinstance(error, KernelFault) and error.kind == "interrupted":
            raise
        return dataclasses.replace(row, note=f"not sanitized: {' '.join(str(error).split())}")
    row = dataclasses.replace(row, findings=findings)
    if not findings or row.verdict != "pass":
        return row
    return dataclasses.replace(row, verdict="fail", reason=f"{findings[0].kind}: {findings[0].message}")


def _with_traffic(row: Row, variant: Variant, problem: Problem, counted: Execution | None) -> Row:
    """What was counted beside what is claimed. A claim that is not what was counted is a failed check."""
    claim: Traffic | None = None
    try:
        claim = claimed_traffic(variant, problem)
    except SandboxError as error:
        row = _failed(row, str(error))
    if claim is not None:
        row = dataclasses.replace(row, claimed_bytes=claim.total_bytes)
    if counted is None or counted.read_bytes is None or counted.write_bytes is None:
        return row
    read, write = counted.read_bytes, counted.write_bytes
    row = dataclasses.replace(row, read_bytes=read, write_bytes=write, total_bytes=read + write)
    if claim is None:
        return row
    holds = (claim.read_bytes, claim.write_bytes) == (read, write)
    row = dataclasses.replace(row, claim_holds=holds)
    if holds:
        return row
    return _failed(
        row,
        f"claims {claim.read_bytes:,} bytes read and {claim.write_bytes:,} written; counted: {read:,} and {write:,}",
    )


def _failed(row: Row, reason: str) -> Row:
    """The row with one more reason to fail; a wrong answer stays the first."""
    reasons = [text for text in (row.reason, reason) if text is not None]
    return dataclasses.replace(row, verdict="fail", reason="; ".join(reasons))
