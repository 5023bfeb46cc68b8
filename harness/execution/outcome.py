"""What comes out: one row per variant, and all of them with the problem and the device. Plain data, in plain units."""

from __future__ import annotations

from dataclasses import dataclass

from harness.execution.protocol import Device
from harness.model.finding import Finding
from harness.operations.attention.problem import Problem

VERDICTS = ("pass", "fail", "error", "unsupported")
"""Right; a wrong answer, or not the bytes that it claims; did not plan, compile or run; does not take this problem."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one variant came to. What is not known is None, never 0."""

    variant: str
    """Its name."""
    algorithm: str | None
    """None where the module that should define it could not be loaded."""
    backend: str | None
    """`cupy` or `numba`; None as for `algorithm`."""
    verdict: str
    """One of `VERDICTS`."""
    compulsory_bytes: int
    """Every input read once, O written once."""
    reason: str | None = None
    """Why the verdict is not `pass`."""
    rank: int | None = None
    """1 is best, equals share a rank; None where it did not pass or what the ranking goes by is unknown."""
    max_abs_error: float | None = None
    """Largest |O - oracle|; NaN where an element is NaN."""
    error_over_budget: float | None = None
    """Largest ratio of error to budget over the elements of O; above 1 is wrong."""
    error_over_expected: float | None = None
    """Largest ratio of error to what is expected of a correct kernel, over the elements of O; above 1 is suspicious."""
    lse_max_abs_error: float | None = None
    """The same for the log-sum-exp; None where the variant stores none."""
    lse_error_over_budget: float | None = None
    """The same for the log-sum-exp."""
    lse_error_over_expected: float | None = None
    """The same for the log-sum-exp."""
    launches: int | None = None
    """Kernel launches in the plan."""
    allocated_bytes: int | None = None
    """What the plan allocates beyond Q, K and V: scratch and outputs."""
    read_bytes: int | None = None
    """Bytes read at the `sectors` level."""
    write_bytes: int | None = None
    """Bytes written at the `sectors` level."""
    total_bytes: int | None = None
    """Both."""
    claimed_bytes: int | None = None
    """What the variant's own closed form says, read and written; None where it claims nothing."""
    claim_holds: bool | None = None
    """Claimed and counted bytes are equal, reads and writes each; None where either is unknown."""
    time_ms: float | None = None
    """Median time on the GPU; None on the emulator, whose time says nothing about a GPU."""
    time_low_ms: float | None = None
    """The true median is not below this, with a confidence of 95 %."""
    time_high_ms: float | None = None
    """Nor above this."""
    tile: str | None = None
    """The tile sizes that it used, such as `Br=64,Bc=32`; None where it declares none."""
    note: str | None = None
    """A remark that does not change the verdict."""
    findings: tuple[Finding, ...] | None = None
    """What the sanitizer found; None where it did not look."""

    @property
    def times_compulsory(self) -> float | None:
        """Total bytes over compulsory bytes."""
        return None if self.total_bytes is None else self.total_bytes / self.compulsory_bytes


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All rows of one comparison, best first, and what they were measured on."""

    problem: Problem
    """What was computed."""
    regime: str | None
    """How the inputs were drawn; None where they are the user's own."""
    seed: int | None
    """With which seed; None where they are the user's own."""
    device: Device
    """Where the variants ran."""
    counted_on: Device | None
    """Where their bytes were counted; None where they were not."""
    tile: str | None = None
    """The tile sizes that were asked for; None where each variant uses its own."""
    sanitized_by: str | None = None
    """What looked for findings; None where nothing did."""
    rows: tuple[Row, ...]
    """Passing rows by rank, then the others."""

    @property
    def all_passed(self) -> bool:
        """Whether everything that ran, or should have, came out right."""
        return all(row.verdict in ("pass", "unsupported") for row in self.rows)
