"""Every variant is run once, and everything that the page shows of it is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.execution.attempt import Attempt
from harness.execution.comparison import Step, compare, where_counted
from harness.execution.outcome import Comparison, Row
from harness.execution.protocol import Executor, Sanitizer
from harness.execution.question import Question
from harness.execution.replay import Replay
from harness.execution.run_settings import RunSettings
from harness.execution.second_draw import SecondDraw
from harness.execution.variant_report import VariantReport
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.studies.report.schedules import replay_or_none


@dataclass(frozen=True)
class Devices:
    """Who does what."""

    executor: Executor
    """Runs the variants."""
    counter: Executor | None
    """Counts bytes beside it; None where that does so itself, or nobody is to."""
    sanitizer: Sanitizer | None
    """Looks for findings; None where nobody is to."""

    @property
    def emulator(self) -> Executor | None:
        """Where what blocks do can be seen."""
        return self.counter if self.executor.device.kind == "gpu" else self.executor


@dataclass(frozen=True)
class Observed:
    """What came of all variants."""

    comparison: Comparison
    reports: dict[str, VariantReport]
    """By variant; none of those that could not be loaded."""
    replays: list[Replay]
    """Of those that are right, as they came."""


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
    """Compare them, and keep more of each than its row. Raises `UsageError` for a bad regime or seed."""
    reports: dict[str, VariantReport] = {}
    replays: list[Replay] = []
    counted_on = where_counted(devices.executor, devices.counter) or devices.executor.device

    def keep(done: Attempt, question: Question) -> None:
        reports[done.variant.name] = VariantReport.of(done, question, settings, counted_on)
        replay = replay_or_none(done, question, devices.emulator)
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
        second=SecondDraw(problem, settings.regime),
        lost=lost,
        step=step,
        observe=keep,
    )
    return Observed(comparison, reports, replays)
