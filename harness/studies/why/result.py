"""The result of `why`: two predicted times, and the causes of their difference."""

from __future__ import annotations

from dataclasses import dataclass

from harness.execution.timings import BenchResult
from harness.studies.why import figures
from harness.studies.why.attribution import Attributed, attribute
from harness.studies.why.causes import (
    SEVERAL_LAUNCHES_ADVICE,
    SMALL_GRID_ADVICE,
    UNROLLED_ADVICE,
    UNTILED_ADVICE,
    Cause,
)
from harness.studies.why.decisions import barriers_met
from harness.studies.why.predicted_time import PredictedTime, predict, roofline
from harness.studies.why.profile import Profile
from harness.studies.why.stalls import is_limited_by_grid, launch_of_fewest_warps
from harness.support.gpu_data_sheets import Gpu
from harness.support.source_text import source_lines

ROOFLINE = "roofline"
"""The name that takes the place of a second variant."""


@dataclass(frozen=True, kw_only=True)
class WhyResult:
    """Why one variant is slower than another, or than the roofline, by the model."""

    slow: Profile
    """The variant in question."""
    fast: Profile | None
    """The variant that it is compared with; None for the roofline."""
    slow_time: PredictedTime
    fast_time: PredictedTime
    causes: tuple[Attributed, ...]
    """The causes of the difference, the largest cost first. Their seconds add up to it."""
    regime: str
    seed: int
    measured: BenchResult | None = None
    """Measured times; None if none were requested."""

    @property
    def gpu(self) -> Gpu:
        """The GPU for which times are predicted."""
        return self.slow_time.gpu

    @property
    def names(self) -> tuple[str, str]:
        """Names of the two variants, or of the variant and the roofline."""
        return self.slow.variant, ROOFLINE if self.fast is None else self.fast.variant

    @property
    def distance_seconds(self) -> float:
        """By how much the first variant is predicted slower; negative if it is faster."""
        return self.slow_time.seconds - self.fast_time.seconds

    def figures(self, cause: Cause) -> tuple[float | None, float | None]:
        """The figures of both variants for a cause, in the cause's unit; None if not known."""
        other = (
            figures.ideal_figure(cause, self.slow)
            if self.fast is None
            else figures.figure(cause, self.fast, self.fast_time)
        )
        return figures.figure(cause, self.slow, self.slow_time), other

    def advice(self, attributed: Attributed) -> str:
        """What to change in the first variant if this cause costs most."""
        cause = attributed.cause
        advice: dict[Cause, str] = {}
        if len(self.slow.launches) > 1:
            advice |= SEVERAL_LAUNCHES_ADVICE
        if not barriers_met(self.slow):
            advice |= UNTILED_ADVICE
        if is_limited_by_grid(launch_of_fewest_warps(self.slow, self.gpu), self.gpu):
            advice |= SMALL_GRID_ADVICE
        if is_unrolled(*attributed.where):
            advice |= UNROLLED_ADVICE
        return advice.get(cause, cause.advice)

    def measured_ms(self, variant: str) -> float | None:
        """The median of cold runs in milliseconds; None if the variant was not timed."""
        rows = () if self.measured is None else self.measured.rows
        return next((row.time_ms for row in rows if row.variant == variant), None)


def is_unrolled(file: str, line: int) -> bool:
    """Whether the line is that of a loop right below `#pragma unroll`, or the one after it."""
    before, loop, own = (*("",) * 3, *source_lines(file)[:line])[-3:] if line > 0 else ("",) * 3
    pairs = ((loop, own), (before, loop))
    return any(
        pragma.split()[:2] == ["#pragma", "unroll"] and pragma.split()[2:] != ["1"] and text.lstrip().startswith("for")
        for pragma, text in pairs
    )


def explain(
    slow: Profile, fast: Profile | None, gpu: Gpu, regime: str, seed: int, measured: BenchResult | None = None
) -> WhyResult:
    """Predict both times and attribute the difference."""
    times = predict(slow, gpu), roofline(slow, gpu) if fast is None else predict(fast, gpu)
    return WhyResult(
        slow=slow,
        fast=fast,
        slow_time=times[0],
        fast_time=times[1],
        causes=attribute(slow, fast, *times),
        regime=regime,
        seed=seed,
        measured=measured,
    )
