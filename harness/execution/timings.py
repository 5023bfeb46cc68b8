"""What timing on a GPU came to: plain data, made by `gpu.bench`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.execution.protocol import Device
from harness.execution.run_settings import Effort
from harness.model.problem import BaseProblem


@dataclass(frozen=True)
class Ceilings:
    """Medians of cold runs, as the contenders' are."""

    copy_bytes_per_s: float
    """Read and written, of a copy of 1 GiB from device memory to device memory."""
    matrix_flops: float
    """Per second, of a product of random square matrices of 8192 through cuBLAS."""
    matrix_dtype: str
    """Of those matrices. bfloat16 has float16's rate on every GPU, and CuPy multiplies only the latter."""


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """What one contender came to. What is not known is None."""

    variant: str
    """Its name."""
    kind: str
    """`variant`, or `library` for somebody else's kernels."""
    verdict: str
    """`pass`, `fail`, `error`, `unsupported`."""
    reason: str | None = None
    """Why the verdict is not `pass`."""
    rank: int | None = None
    """1 + how many are surely faster; those that share a rank cannot be told apart. None where it did not pass."""
    time_ms: float | None = None
    """Median of cold runs."""
    time_low_ms: float | None = None
    time_high_ms: float | None = None
    """The true median lies between these two, with a confidence of 95 %."""
    samples: int | None = None
    """Cold runs that were measured."""
    sustained_ms: float | None = None
    """Mean of runs back to back, caches warm, clocks as a loaded GPU has them."""
    sustained_mhz: float | None = None
    """Median clock of the multiprocessors meanwhile; None where NVML is not there."""
    held_down_by: str | None = None
    """What lowered the clock meanwhile, as NVML tells; None for nothing or unknown."""
    plan_ms: float | None = None
    """Making the plan."""
    compile_ms: float | None = None
    """Compiling and binding, or fetching from the compilers' caches."""
    error_over_budget: float | None = None
    """The largest, of O, at the places that were checked, before and after timing."""
    sector_bytes: int | None = None
    """Bytes at the `sectors` level, as the variant claims them."""


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """All rows, best first, and what they were measured on."""

    problem: BaseProblem
    regime: str
    seed: int
    device: Device
    driver: str | None
    """The GPU driver's version; None without NVML."""
    torch: str | None
    """PyTorch's version; None where its rows are not there."""
    ceilings: Ceilings
    floor_ms: float
    """Below this a time is no time."""
    effort: Effort
    rows: tuple[BenchRow, ...]

    @property
    def something_ran(self) -> bool:
        """Whether anything took the problem, whatever came of it."""
        return any(row.verdict != "unsupported" for row in self.rows)

    @property
    def failed(self) -> bool:
        """Whether a variant is wrong or broken. What a library does is its own affair."""
        return any(row.kind == "variant" and row.verdict in ("fail", "error") for row in self.rows)


def in_order_of_merit(rows: Iterable[BenchRow]) -> tuple[BenchRow, ...]:
    """Those that passed first, by rank and time; then those that are wrong, broken, and unsupported."""
    order = {"pass": 0, "fail": 1, "error": 2, "unsupported": 3}
    return tuple(sorted(rows, key=lambda row: (order[row.verdict], row.rank or 0, row.time_ms or 0.0)))
