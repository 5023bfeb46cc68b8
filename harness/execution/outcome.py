"""Results of a comparison as plain data: one row per variant, and all rows with the problem and the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from harness.execution.attempt import Attempt
from harness.execution.judging.accuracy import OutputAccuracy, worst_ratio
from harness.execution.judging.inferred_numerics import InferredNumerics
from harness.execution.judging.verdict import PASS, UNDECIDED, UNSUPPORTED
from harness.execution.protocol import Device
from harness.model.finding import Finding
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import tile_text
from harness.model.traffic import link_bytes


@dataclass(frozen=True)
class OutputErrors:
    """Errors of one output; the fields have the meaning of those of `Row` with the same names."""

    max_abs_error: float
    error_over_budget: float
    error_over_expected: float

    @classmethod
    def of(cls, accuracy: OutputAccuracy) -> OutputErrors:
        """Extract the errors from a comparison of one output with the answer."""
        return cls(accuracy.max_abs_error, accuracy.error_over_budget, accuracy.error_over_expected)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Result of one variant. A value that is not known is None, never 0."""

    variant: str
    """Name of the variant."""
    algorithm: str | None
    """Name of the algorithm; None if the variant's module could not be loaded."""
    backend: str | None
    """The toolchain, such as `cupy`; None if the variant's module could not be loaded."""
    verdict: str
    """One of `VERDICTS`."""
    compulsory_bytes: int
    """Bytes to read every input once and write every output once."""
    reason: str | None = None
    """Why the verdict is not `pass`; None if it is."""
    rank: int | None = None
    """Rank from 1 (best); equal rows share a rank. None if the row did not pass or its ranking figure is unknown."""
    max_abs_error: float | None = None
    """Largest |output - oracle| of the main output; NaN if an element is NaN."""
    error_over_budget: float | None = None
    """Largest ratio of error to budget of the main output; above 1 is wrong."""
    error_over_expected: float | None = None
    """Largest ratio of error to expected error of the main output; above 1 is suspicious."""
    optional_errors: Mapping[str, OutputErrors] = field(default_factory=dict)
    """Errors of each optional output that the variant stores, by output name."""
    power: float | None = None
    """Error of the nearest trivial wrong answer / largest passing error, or a lower bound of at least 1. Below 1, a
    right answer proves nothing. None if the answer is wrong or was not checked."""
    nearest_wrong_answer: str | None = None
    """Name of the nearest trivial wrong answer, such as `zeros`."""
    launches: int | None = None
    """Kernel launches in the plan."""
    allocated_bytes: int | None = None
    """Bytes that the plan allocates beyond the inputs: scratch and outputs."""
    read_bytes: int | None = None
    """Bytes of global memory read at the `sectors` level."""
    write_bytes: int | None = None
    """Bytes of global memory written at the `sectors` level."""
    local_read_bytes: int | None = None
    """Bytes of the threads' local memory read at the `sectors` level."""
    local_write_bytes: int | None = None
    """Bytes of the threads' local memory written at the `sectors` level."""
    total_bytes: int | None = None
    """Bytes read plus written, of global and local memory."""
    claimed_bytes: int | None = None
    """Bytes of global memory, read plus written, by the variant's own formula; None if it claims nothing."""
    claim_holds: bool | None = None
    """Whether claimed and counted bytes of global memory are equal, for reads and for writes; None if either is
    unknown."""
    time_ms: float | None = None
    """Median time on the GPU; None on the emulator, whose time does not predict a GPU's."""
    time_low_ms: float | None = None
    """Lower bound of the true median, with a confidence of 95 %."""
    time_high_ms: float | None = None
    """Upper bound of the true median, with a confidence of 95 %."""
    tile: str | None = None
    """The tile sizes used, such as `Br=64,Bc=32`; None if the variant declares none."""
    strictest_numerics: str | None = None
    """For a variant that declares no numerics: the strictest declaration that its code permits. None otherwise."""
    error_over_strictest: float | None = None
    """Error / error expected under `strictest_numerics`; above 1 is suspicious."""
    note: str | None = None
    """A remark that does not affect the verdict."""
    findings: tuple[Finding, ...] | None = None
    """The sanitizer's findings; None if it did not run."""
    link_bytes: int | None = None
    """Bytes that copies move between devices; None if one device computes the problem, or they are not known."""
    device_bytes: int | None = None
    """The most bytes that a device holds; None if one device computes the problem."""

    @classmethod
    def of(cls, attempt: Attempt, inferred: InferredNumerics | None = None) -> Row:
        """Convert an attempt to a row without a rank."""
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
            strictest_numerics=None if inferred is None else inferred.strictest,
            error_over_strictest=None if inferred is None else inferred.error_over_expected,
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
        if problem.sharing is not None and attempt.plan is not None:
            row = replace(row, device_bytes=max(attempt.plan.device_bytes(problem)))
            if attempt.counted is not None:
                row = replace(row, link_bytes=link_bytes(attempt.counted.links))
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
        """The largest ratio of error to budget over all outputs; NaN exceeds any number."""
        return _worst(self.error_over_budget, *(each.error_over_budget for each in self.optional_errors.values()))

    @property
    def worst_over_expected(self) -> float | None:
        """The largest ratio of error to expected error over all outputs; NaN exceeds any number."""
        return _worst(self.error_over_expected, *(each.error_over_expected for each in self.optional_errors.values()))

    @property
    def local_bytes(self) -> int | None:
        """Bytes of local memory, read plus written; None if not counted."""
        if self.local_read_bytes is None or self.local_write_bytes is None:
            return None
        return self.local_read_bytes + self.local_write_bytes

    @property
    def times_compulsory(self) -> float | None:
        """Total bytes / compulsory bytes."""
        return None if self.total_bytes is None else self.total_bytes / self.compulsory_bytes


def _worst(*ratios: float | None) -> float | None:
    known = [ratio for ratio in ratios if ratio is not None]
    return worst_ratio(known) if known else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All rows of one comparison, best first, with the problem and the devices."""

    problem: BaseProblem
    """The problem that was computed."""
    regime: str | None
    """The distribution of the inputs; None for the user's own arrays."""
    seed: int | None
    """The seed of the inputs; None for the user's own arrays."""
    device: Device
    """The device on which the variants ran."""
    counted_on: Device | None
    """The device on which bytes were counted; None if they were not."""
    tile: str | None = None
    """The requested tile sizes; None if each variant uses its default."""
    sanitized_by: str | None = None
    """Name of the sanitizer; None if none ran."""
    rows: tuple[Row, ...]
    """Passing rows by rank, then the others."""

    @property
    def something_ran(self) -> bool:
        """Whether at least one variant supported the problem."""
        return any(row.verdict != UNSUPPORTED for row in self.rows)

    @property
    def all_passed(self) -> bool:
        """Whether every variant that supports the problem passed."""
        return all(row.verdict in (PASS, UNSUPPORTED) for row in self.rows)

    @property
    def nothing_wrong(self) -> bool:
        """Whether every variant that supports the problem passed or is undecided (right, but that proves nothing)."""
        return all(row.verdict in (PASS, UNDECIDED, UNSUPPORTED) for row in self.rows)
