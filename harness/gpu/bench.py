"""Honest times: all contenders in turns on one GPU, until each median is known well enough, then checked once more.

Contenders are the registered variants and, where PyTorch is installed, its own attention. A round runs each of them
once, in an order drawn anew, so that whatever drifts (clocks, temperature) drifts for all of them. Who is known well
enough drops out of the rounds.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from harness.execution.question import ANY_KERNEL, Question
from harness.execution.run_settings import Effort
from harness.execution.spot_check import check_spots
from harness.execution.timings import BenchRow, in_order_of_merit
from harness.model.numerics import Numerics
from harness.support.errors import SandboxError
from harness.support.intervals import FEWEST_SAMPLES, Interval, median_interval, ranks


class Contender(Protocol):
    """Something that computes the problem on the GPU."""

    def enqueue(self, inputs: int) -> None:
        """Launch on that set of inputs, without waiting."""
        ...

    def outputs(self, inputs: int) -> Mapping[str, np.ndarray]:
        """Run once more, on fresh outputs, and fetch O and, where there is one, lse."""
        ...


class Timer(Protocol):
    """Measures what is enqueued."""

    def cold_ms(self, enqueue: Callable[[], None]) -> float:
        """One run, with nothing of its data in L2."""
        ...

    def sustained_ms(self, enqueue: Callable[[], None], seconds: float) -> float:
        """Mean time of a run, back to back for so many seconds."""
        ...


@dataclass
class Entry:
    """A contender on its way to a row."""

    name: str
    kind: str
    contender: Contender | None
    """None where it got no further than `verdict` and `reason`."""
    verdict: str = "error"
    reason: str | None = None
    plan_ms: float | None = None
    compile_ms: float | None = None
    sector_bytes: int | None = None
    numerics: Numerics = ANY_KERNEL
    """Where it rounds, as far as it says so."""
    floor_ms: float | None = None
    """The least that it can take, where it multiplies other numbers than the problem's."""
    sustained: bool = True
    """Whether it runs back to back, too."""
    samples_ms: list[float] = field(default_factory=list)
    sustained_ms: float | None = None
    sustained_mhz: float | None = None
    held_down_by: str | None = None
    error_over_budget: float | None = None

    @property
    def interval(self) -> Interval | None:
        """Of the cold runs."""
        return median_interval(self.samples_ms) if self.samples_ms else None

    def row(self) -> BenchRow:
        """As plain data, not ranked."""
        names = {f.name for f in dataclasses.fields(self)} & {f.name for f in dataclasses.fields(BenchRow)}
        row = BenchRow(variant=self.name, **{name: getattr(self, name) for name in names})
        if self.interval is None:
            return row
        low, median, high = dataclasses.astuple(self.interval)
        return dataclasses.replace(
            row, time_low_ms=low, time_ms=median, time_high_ms=high, samples=len(self.samples_ms)
        )


Step = Callable[[str], None]
Watch = Callable[[Callable[[], float]], tuple[float, float | None, str | None]]
"""Runs a measurement and tells its result, the clock meanwhile in MHz, and what held it down."""


def bench(
    entries: Sequence[Entry],
    spots: Sequence[Sequence[Question]],
    timer: Timer,
    effort: Effort,
    least_ms: float,
    watch: Watch,
    step: Step,
) -> tuple[BenchRow, ...]:
    """Measure all entries that have a contender; rows, best first.

    `spots` are the places to check, for each set of inputs that contenders have. A median below `least_ms`, or the
    entry's own `floor_ms`, is beyond what the GPU can do: it is not a time but a mistake, and the row says so instead
    of showing it.
    """
    for entry in entries:
        step(f"{entry.name}: first run")
        _attempt(entry, lambda e=entry: _check(e, spots))  # type: ignore[misc]
    _rounds([e for e in entries if e.verdict == "pass"], len(spots), timer, effort, step)
    for entry in entries:
        if entry.verdict == "pass" and entry.sustained and effort.sustained_seconds:
            step(f"{entry.name}: sustained")
            _attempt(entry, lambda e=entry: _sustain(e, len(spots), timer, effort, watch))  # type: ignore[misc]
    for entry in entries:
        if entry.verdict == "pass":
            step(f"{entry.name}: checked again")
            _attempt(entry, lambda e=entry: _check(e, spots))  # type: ignore[misc]
            _reject_impossible(entry, least_ms if entry.floor_ms is None else entry.floor_ms)
    return _ranked(entries)


def _attempt(entry: Entry, work: Callable[[], None]) -> None:
    """Whatever goes wrong in a contender becomes its row."""
    if entry.contender is None:
        return
    try:
        work()
    except SandboxError as error:
        entry.verdict, entry.reason = "error", str(error)
    except Exception as error:  # a library's own
        entry.verdict, entry.reason = "error", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _check(entry: Entry, spots: Sequence[Sequence[Question]]) -> None:
    assert entry.contender is not None
    for inputs, places in enumerate(spots):
        checked = check_spots(places, entry.contender.outputs(inputs), entry.numerics)
        # Written so that NaN stays.
        if entry.error_over_budget is None or not entry.error_over_budget >= checked.error_over_budget:
            entry.error_over_budget = checked.error_over_budget
        if checked.reason is not None:
            entry.verdict, entry.reason = "fail", checked.reason
            return
    entry.verdict = "pass"


def _rounds(entries: list[Entry], input_sets: int, timer: Timer, effort: Effort, step: Step) -> None:
    """Cold runs in turns. The first round warms up and does not count."""
    order = random.Random(effort.seed)
    number = 0
    step("all in turns")
    while entries:
        order.shuffle(entries)
        for entry in entries:
            _attempt(entry, lambda e=entry, n=number: _sample(e, n % input_sets, timer, n > 0))  # type: ignore[misc]
        entries = [e for e in entries if e.verdict == "pass" and not _known(e, effort)]
        number += 1


def _sample(entry: Entry, inputs: int, timer: Timer, counts: bool) -> None:
    contender = entry.contender
    assert contender is not None
    took_ms = timer.cold_ms(lambda: contender.enqueue(inputs))
    if counts:
        entry.samples_ms.append(took_ms)


def _known(entry: Entry, effort: Effort) -> bool:
    samples, interval = entry.samples_ms, entry.interval
    if interval is None or len(samples) < FEWEST_SAMPLES:
        return False
    spent = len(samples) >= effort.most_samples or sum(samples) >= 1000 * effort.most_seconds
    # Two more than it takes to be sure at all: an interval of extremes that happens to be narrow is luck.
    return spent or (interval.noise <= effort.noise and len(samples) >= FEWEST_SAMPLES + 2)


def _sustain(entry: Entry, input_sets: int, timer: Timer, effort: Effort, watch: Watch) -> None:
    contender = entry.contender
    assert contender is not None
    turn = [0]

    def enqueue() -> None:
        contender.enqueue(turn[0] % input_sets)
        turn[0] += 1

    entry.sustained_ms, entry.sustained_mhz, entry.held_down_by = watch(
        lambda: timer.sustained_ms(enqueue, effort.sustained_seconds)
    )


def _reject_impossible(entry: Entry, least_ms: float) -> None:
    interval = entry.interval
    if interval is not None and interval.median < least_ms:
        entry.verdict = "error"
        entry.reason = (
            f"{interval.median:.4f} ms is less than the {least_ms:.4f} ms that the problem's bytes and arithmetic take "
            "at this GPU's peak; something was not run or not waited for"
        )
        entry.samples_ms, entry.sustained_ms = [], None


def _ranked(entries: Sequence[Entry]) -> tuple[BenchRow, ...]:
    intervals = {e.name: e.interval for e in entries if e.verdict == "pass"}
    told = ranks({name: interval for name, interval in intervals.items() if interval is not None})
    return in_order_of_merit([dataclasses.replace(entry.row(), rank=told.get(entry.name)) for entry in entries])
