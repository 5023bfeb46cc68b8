"""What comes out: one row per variant, and all of them with the problem and the device. Plain data, in plain units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from harness.execution.accuracy import OutputAccuracy, worst_ratio
from harness.execution.attempt import Attempt
from harness.execution.protocol import Device
from harness.execution.undeclared_numerics import UndeclaredNumerics
from harness.execution.verdict import PASS, UNDECIDED, UNSUPPORTED
from harness.model.finding import Finding
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import tile_text


@dataclass(frozen=True)
class OutputErrors:
    """How far off an output is; see the fields of `Row` that are called the same."""

    max_abs_error: float
    error_over_budget: float
    error_over_expected: float

    @classmethod
    def of(cls, accuracy: OutputAccuracy) -> OutputErrors:
        """The numbers of a comparison."""
        return cls(accuracy.max_abs_error, accuracy.error_over_budget, accuracy.error_over_expected)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one variant came to. What is not known is None, never 0."""

    variant: str
    """Its name."""
    algorithm: str | None
    """None where the module that should define it could not be loaded."""
    backend: str | None
    """The toolchain, such as `cupy`; None as for `algorithm`."""
    verdict: str
    """One of `VERDICTS`."""
    compulsory_bytes: int
    """Every input read once, every output written once."""
    reason: str | None = None
    """Why the verdict is not `pass`."""
    rank: int | None = None
    """1 is best, equals share a rank; None where it did not pass or what the ranking goes by is unknown."""
    max_abs_error: float | None = None
    """Largest |output - oracle| of the main output; NaN where an element is NaN."""
    error_over_budget: float | None = None
    """Largest ratio of error to budget of the main output; above 1 is wrong."""
    error_over_expected: float | None = None
    """Largest ratio of error to what is expected of a correct kernel, of the main output; above 1 is suspicious."""
    optional_errors: Mapping[str, OutputErrors] = field(default_factory=dict)
    """The same for each optional output that the variant stores."""
    power: float | None = None
    """The error of the nearest trivial wrong answer over what would pass, or a lower bound of at least 1; below 1 a
    right answer proves nothing. None where the answer is wrong or was not looked at."""
    nearest_wrong_answer: str | None = None
    """Which one that is, such as `zeros`."""
    launches: int | None = None
    """Kernel launches in the plan."""
    allocated_bytes: int | None = None
    """What the plan allocates beyond the inputs: scratch and outputs."""
    read_bytes: int | None = None
    """Bytes of global memory read at the `sectors` level."""
    write_bytes: int | None = None
    """Bytes of global memory written at the `sectors` level."""
    local_read_bytes: int | None = None
    """Bytes of the threads' local memory read at the `sectors` level."""
    local_write_bytes: int | None = None
    """Bytes of the threads' local memory written at the `sectors` level."""
    total_bytes: int | None = None
    """Read and written, of global and of local memory."""
    claimed_bytes: int | None = None
    """What the variant's own closed form says of global memory, read and written; None where it claims nothing."""
    claim_holds: bool | None = None
    """Claimed and counted bytes of global memory are equal, reads and writes each; None where either is unknown."""
    time_ms: float | None = None
    """Median time on the GPU; None on the emulator, whose time says nothing about a GPU."""
    time_low_ms: float | None = None
    """The true median is not below this, with a confidence of 95 %."""
    time_high_ms: float | None = None
    """Nor above this."""
    tile: str | None = None
    """The tile sizes that it used, such as `Br=64,Bc=32`; None where it declares none."""
    strictest_numerics: str | None = None
    """What a variant that declares no numerics could declare at most, for all that its code shows; else None."""
    error_over_strictest: float | None = None
    """Its error over what would be expected then; above 1 is suspicious."""
    note: str | None = None
    """A remark that does not change the verdict."""
    findings: tuple[Finding, ...] | None = None
    """What the sanitizer found; None where it did not look."""

    @classmethod
    def of(cls, attempt: Attempt, undeclared: UndeclaredNumerics | None = None) -> Row:
        """What an attempt came to, not ranked yet."""
        variant, problem = attempt.variant, attempt.problem
        row = cls(
            variant=variant.name,
            algorithm=variant.algorithm,
            backend=variant.backend,
            verdict=attempt.verdict,
            reason=attempt.reason,
            compulsory_bytes=problem.compulsory_bytes,
            launches=None if attempt.plan is None else len(attempt.plan.launches),
            allocated_bytes=None if attempt.plan is None else attempt.plan.allocated_bytes(problem),
            claimed_bytes=None if attempt.claim is None else attempt.claim.total_bytes,
            claim_holds=attempt.claim_holds,
            tile=None if attempt.tile is None else tile_text(attempt.tile),
            strictest_numerics=None if undeclared is None else undeclared.strictest,
            error_over_strictest=None if undeclared is None else undeclared.error_over_expected,
            note=attempt.note,
            findings=attempt.findings,
        )
        if attempt.accuracy is not None:
            main, *others = attempt.accuracy.by_output.items()
            row = replace(
                row,
                max_abs_error=main[1].max_abs_error,
                error_over_budget=main[1].error_over_budget,
                error_over_expected=main[1].error_over_expected,
                optional_errors={name: OutputErrors.of(accuracy) for name, accuracy in others},
            )
        if attempt.power is not None:
            row = replace(row, power=attempt.power.ratio, nearest_wrong_answer=attempt.power.nearest)
        if attempt.execution is not None and (time := attempt.execution.time_ms) is not None:
            row = replace(row, time_ms=time.median, time_low_ms=time.low, time_high_ms=time.high)
        counted = attempt.counted
        if counted is not None and counted.read_bytes is not None and counted.write_bytes is not None:
            read, write = counted.read_bytes, counted.write_bytes
            local_read, local_write = counted.local_read_bytes or 0, counted.local_write_bytes or 0
            row = replace(
                row,
                read_bytes=read,
                write_bytes=write,
                local_read_bytes=local_read,
                local_write_bytes=local_write,
                total_bytes=read + write + local_read + local_write,
            )
        return row

    @property
    def worst_over_budget(self) -> float | None:
        """The largest ratio of error to budget of all outputs; NaN is worse than anything."""
        return _worst(self.error_over_budget, *(each.error_over_budget for each in self.optional_errors.values()))

    @property
    def worst_over_expected(self) -> float | None:
        """The same over what is expected."""
        return _worst(self.error_over_expected, *(each.error_over_expected for each in self.optional_errors.values()))

    @property
    def local_bytes(self) -> int | None:
        """Read and written, of local memory."""
        if self.local_read_bytes is None or self.local_write_bytes is None:
            return None
        return self.local_read_bytes + self.local_write_bytes

    @property
    def times_compulsory(self) -> float | None:
        """Total bytes over compulsory bytes."""
        return None if self.total_bytes is None else self.total_bytes / self.compulsory_bytes


def _worst(*ratios: float | None) -> float | None:
    known = [ratio for ratio in ratios if ratio is not None]
    return worst_ratio(known) if known else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All rows of one comparison, best first, and what they were measured on."""

    problem: BaseProblem
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
    def something_ran(self) -> bool:
        """Whether a variant took the problem, whatever came of it."""
        return any(row.verdict != UNSUPPORTED for row in self.rows)

    @property
    def all_passed(self) -> bool:
        """Whether everything that ran, or should have, came out right."""
        return all(row.verdict in (PASS, UNSUPPORTED) for row in self.rows)

    @property
    def nothing_wrong(self) -> bool:
        """The same, where answers that prove nothing count as right."""
        return all(row.verdict in (PASS, UNDECIDED, UNSUPPORTED) for row in self.rows)
