"""Benchmarks contenders on one GPU: interleaved runs until each median is precise enough, then a second check.

Contenders are the registered variants and, if PyTorch is installed, its attention implementations. A round runs each of
them once, in random order, so that drift of clocks and temperature affects all of them alike. A contender whose median
is precise enough leaves the rounds.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from harness.execution.judging.question import ANY_KERNEL, Question
from harness.execution.judging.spot_check import check_spots
from harness.execution.run_settings import Effort
from harness.execution.timings import BenchRow, in_order_of_merit
from harness.model.numerics import Numerics
from harness.support.errors import SandboxError
from harness.support.intervals import FEWEST_SAMPLES, Interval, median_interval, ranks


class Contender(Protocol):
    """An implementation that computes the problem on the GPU."""

    def enqueue(self, inputs: int) -> None:
        """Enqueue one run on that set of inputs, without waiting."""
        ...

    def outputs(self, inputs: int) -> Mapping[str, np.ndarray]:
        """Run once more on fresh output buffers and return the outputs as host arrays by name."""
        ...


class Timer(Protocol):
    """Measures the GPU time of enqueued work."""

    def cold_ms(self, enqueue: Callable[[], None]) -> float:
        """Time of one run in milliseconds, with none of its data in L2."""
        ...

    def sustained_ms(self, enqueue: Callable[[], None], seconds: float) -> float:
        """Mean time of back-to-back runs in milliseconds, repeated for so many seconds."""
        ...


@dataclass
class Entry:
    """A contender and its measurements so far."""

    name: str
    kind: str
    contender: Contender | None
    """The contender; None if it failed earlier, with `verdict` and `reason`."""
    verdict: str = "error"
    reason: str | None = None
    plan_ms: float | None = None
    compile_ms: float | None = None
    sector_bytes: int | None = None
    numerics: Numerics = ANY_KERNEL
    """Declared numerics, which determine the error budget."""
    floor_ms: float | None = None
    """Least possible time, if it differs from the other contenders' because of the dtype of the factors; else None."""
    sustained: bool = True
    """Whether to time back-to-back runs as well."""
    samples_ms: list[float] = field(default_factory=list)
    sustained_ms: float | None = None
    sustained_mhz: float | None = None
    held_down_by: str | None = None
    error_over_budget: float | None = None

    @property
    def interval(self) -> Interval | None:
        """Median time of cold runs with its confidence interval; None without samples."""
        return median_interval(self.samples_ms) if self.samples_ms else None

    def row(self) -> BenchRow:
        """The measurements as plain data, without a rank."""
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
"""Runs a measurement and returns its result, the median clock in MHz during it, and the reason for a lowered clock."""


def bench(
    entries: Sequence[Entry],
    spots: Sequence[Sequence[Question]],
    timer: Timer,
    effort: Effort,
    least_ms: float,
    watch: Watch,
    step: Step,
) -> tuple[BenchRow, ...]:
    """Measure all entries that have a contender and return their rows, best first.

    `spots` are the places to check, for each set of inputs. A median below `least_ms`, or below the entry's own
    `floor_ms`, is faster than the GPU allows: it is reported as a failure instead of a time.
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
    """Run `work` and record any exception as the entry's failure."""
    if entry.contender is None:
        return
    try:
        work()
    except SandboxError as error:
        entry.verdict, entry.reason = "error", str(error)
    except Exception as error:  # an exception of a library
        entry.verdict, entry.reason = "error", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _check(entry: Entry, spots: Sequence[Sequence[Question]]) -> None:
    assert entry.contender is not None
    for inputs, places in enumerate(spots):
        checked = check_spots(places, entry.contender.outputs(inputs), entry.numerics)
        # Written so that NaN persists.
        if entry.error_over_budget is None or not entry.error_over_budget >= checked.error_over_budget:
            entry.error_over_budget = checked.error_over_budget
        if checked.reason is not None:
            entry.verdict, entry.reason = "fail", checked.reason
            return
    entry.verdict = "pass"


def _rounds(entries: list[Entry], input_sets: int, timer: Timer, effort: Effort, step: Step) -> None:
    """Interleaved cold runs. The first round is a warm-up and is not counted."""
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
    # Two samples more than the minimum for this confidence: an interval of extremes may be narrow by chance.
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
    rank_of = ranks({name: interval for name, interval in intervals.items() if interval is not None})
    return in_order_of_merit([dataclasses.replace(entry.row(), rank=rank_of.get(entry.name)) for entry in entries])
