"""Runs every variant once and collects the data that the page shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.execution.attempt import Attempt
from harness.execution.comparison import LARGEST_COUNTED_FLOPS, Step, compare, where_counted
from harness.execution.judging.holdout_inputs import HoldoutInputs
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import PASS
from harness.execution.outcome import Comparison, Row
from harness.execution.protocol import Executor, Sanitizer
from harness.execution.run_settings import RunSettings
from harness.execution.schedule.events import Observer
from harness.execution.schedule.replay import Replay
from harness.execution.schedule.replay_recording import replay_of
from harness.execution.variant_report import VariantReport
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.errors import SandboxError


@dataclass(frozen=True)
class Devices:
    """The executors and the sanitizer of a report."""

    executor: Executor
    """Runs the variants."""
    counter: Executor | None
    """Counts bytes in a separate run; None if `executor` counts them or if they are not counted."""
    sanitizer: Sanitizer | None
    """Looks for findings; None to skip this."""

    @property
    def emulator(self) -> Executor | None:
        """The executor that can record events of blocks; None if there is none."""
        return self.counter if self.executor.device.is_gpu else self.executor


@dataclass(frozen=True)
class Observed:
    """The results of all variants."""

    comparison: Comparison
    reports: dict[str, VariantReport]
    """Reports by variant, without those that could not be loaded."""
    replays: list[Replay]
    """Replays of the variants that are right, in the order of running."""


def observe_variants(
    variants: Sequence[Variant],
    problem: BaseProblem,
    devices: Devices,
    settings: RunSettings,
    *,
    tile: str | None,
    lost: Iterable[Row],
    step: Step,
) -> Observed:
    """Compare variants and collect the details of each. Raises `UsageError` for a bad regime or seed."""
    reports: dict[str, VariantReport] = {}
    replays: list[Replay] = []
    counted_on = where_counted(devices.executor, devices.counter) or devices.executor.device

    def keep(done: Attempt, question: Question) -> None:
        reports[done.variant.name] = VariantReport.of(done, question, settings, counted_on)
        replay = _replay_or_none(done, question, devices.emulator)
        if replay is not None:
            replays.append(replay)

    comparison = compare(
        variants,
        problem,
        devices.executor,
        settings,
        counter=devices.counter,
        tile=tile,
        sanitizer=devices.sanitizer,
        holdout=HoldoutInputs(problem, settings.regime),
        lost=lost,
        step=step,
        observe=keep,
    )
    return Observed(comparison, reports, replays)


def _replay_or_none(done: Attempt, question: Question, executor: Executor | None) -> Replay | None:
    """Run a correct variant again and record a replay; None if no executor can record one, or it would take long."""
    if not isinstance(executor, Observer) or done.verdict != PASS or done.plan is None:
        return None
    if question.problem.flops > LARGEST_COUNTED_FLOPS:
        return None
    try:
        return replay_of(done.variant, question.problem, executor, question.inputs, done.plan)
    except SandboxError:
        return None  # errors of a second run are reported by the comparison
