"""Compares variants on one problem: each is checked against the oracle, its bytes are counted, and rows are ranked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from harness.execution.attempt import Attempt, attempt
from harness.execution.judging.deciding_problem import deciding_problem
from harness.execution.judging.holdout_inputs import HoldoutInputs
from harness.execution.judging.inferred_numerics import inferred_numerics
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import ERROR, FAIL, PASS, VERDICTS
from harness.execution.outcome import Comparison, Row
from harness.execution.planning.preparation import Preparation
from harness.execution.protocol import Device, Executor, Sanitizer
from harness.execution.run_settings import DEFAULT_SETTINGS, RunSettings
from harness.model.operation import draw_inputs
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.intervals import Interval, ranks

COUNT_MODES = ("auto", "always", "never")
LARGEST_COUNTED_FLOPS = 2e9
"""With `auto`, a run on a GPU has its bytes counted on the emulator up to this size in FLOP: seconds per variant."""

NOTHING_KNOWN: Mapping[str, Row] = MappingProxyType({})
Step = Callable[[str], None]
"""Callback that receives the name of the next step, such as for a progress bar."""


Observer = Callable[[Attempt, Question], None]
"""Callback that receives each attempt and the question it was checked against, for more detail than a row has."""


Done = Callable[[str, Row], None]
"""Callback that receives a variant's name and its row before ranking, so that results survive an interruption."""


def _not_kept(variant: str, row: Row) -> None:
    pass


def _ignore(step: str) -> None:
    pass


def _unobserved(done: Attempt, question: Question) -> None:
    pass


def counts_beside(mode: str, problem: BaseProblem, device: Device) -> bool:
    """Whether bytes have to be counted in a separate run on the emulator, because `device` does not count them."""
    assert mode in COUNT_MODES
    if not device.is_gpu or mode == "never":
        return False
    return mode == "always" or problem.flops <= LARGEST_COUNTED_FLOPS


def where_counted(executor: Executor, counter: Executor | None) -> Device | None:
    """The device that counts the bytes; None if they are not counted."""
    if not executor.device.is_gpu:
        return executor.device
    return None if counter is None else counter.device


def compare(
    variants: Sequence[Variant],
    problem: BaseProblem,
    executor: Executor,
    settings: RunSettings = DEFAULT_SETTINGS,
    *,
    counter: Executor | None = None,
    tile: str | None = None,
    sanitizer: Sanitizer | None = None,
    holdout: HoldoutInputs | None = None,
    lost: Iterable[Row] = (),
    known: Mapping[str, Row] = NOTHING_KNOWN,
    step: Step = _ignore,
    observe: Observer = _unobserved,
    done: Done = _not_kept,
) -> Comparison:
    """Run `variants` on one problem, with inputs of the regime and seed of `settings`; the rows, best first.

    `counter` counts bytes where `executor` does not. `tile` is the requested tile sizes. A variant fails if `sanitizer`
    has findings, or if its answer to the inputs of `holdout` is wrong. `lost` are rows of variants that could not be
    loaded. `known` maps names of variants that need not run again to their rows. Failures of a variant become its row
    and do not affect the others. Raises `UsageError` for a bad regime or seed.
    """
    step("the reference result")
    inputs = draw_inputs(problem, settings.regime, settings.seed)
    rows = dict(known)
    with Preparation([v for v in variants if v.name not in known], problem, executor, counter) as preparation:
        question = Question.pose(problem, inputs)
        for variant in preparation.as_prepared():
            step(variant.name)
            tried = attempt(
                variant, problem, executor, question=question, counter=counter, sanitizer=sanitizer, holdout=holdout
            )
            if tried.power is not None and not tried.power.decides:
                remedy = deciding_problem(variant, problem, settings.regime, settings.seed)
                tried = dataclasses.replace(tried, remedy=remedy)
            inferred = inferred_numerics(tried, question)
            rows[variant.name] = Row.of(_with_declared_failure(tried, settings.regime), inferred)
            done(variant.name, rows[variant.name])
            observe(tried, question)
    return Comparison(
        problem=problem,
        regime=settings.regime,
        seed=settings.seed,
        device=executor.device,
        counted_on=where_counted(executor, counter),
        tile=tile,
        sanitized_by=None if sanitizer is None else sanitizer.name,
        rows=rank([*(rows[variant.name] for variant in variants), *lost], executor.device),
    )


def _with_declared_failure(done: Attempt, regime: str) -> Attempt:
    """Keep the verdict of a failure that the variant declares as known, and add a note."""
    if done.verdict != FAIL or regime not in done.variant.fails_in:
        return done
    note = f"it declares that it fails where inputs are {regime}"
    return dataclasses.replace(done, note=note if done.note is None else f"{done.note}; {note}")


def lost_row(name: str, reason: str, problem: BaseProblem) -> Row:
    """The row of a variant whose module could not be loaded."""
    return Row(
        variant=name,
        algorithm=None,
        backend=None,
        verdict=ERROR,
        reason=reason,
        compulsory_bytes=problem.compulsory_bytes,
    )


def rank(rows: Iterable[Row], device: Device) -> tuple[Row, ...]:
    """Rank passing rows by time on a GPU or by total bytes on the emulator, and put the others after them.

    Equal rows share a rank. Times are equal if their intervals overlap. A passing row whose time or bytes are unknown
    gets no rank and follows the ranked ones.
    """
    rows = list(rows)
    merits = {row.variant: merit for row in rows if row.verdict == PASS and (merit := _merit(row, device))}
    rank_of = ranks(merits)
    order = {verdict: number for number, verdict in enumerate(VERDICTS)}

    def place(row: Row) -> tuple[int, bool, int, float]:
        merit = merits.get(row.variant)
        return order[row.verdict], merit is None, rank_of.get(row.variant, 0), merit.median if merit else 0.0

    ranked = (dataclasses.replace(row, rank=rank_of.get(row.variant)) for row in rows)
    return tuple(sorted(ranked, key=place))


def _merit(row: Row, device: Device) -> Interval | None:
    """The interval that a row is ranked by; counted bytes are an interval of length 0."""
    if not device.is_gpu:
        return None if row.total_bytes is None else Interval(row.total_bytes, row.total_bytes, row.total_bytes)
    if row.time_ms is None or row.time_low_ms is None or row.time_high_ms is None:
        return None
    return Interval(row.time_low_ms, row.time_ms, row.time_high_ms)
