"""Results of timing on a GPU: plain data, produced by `gpu.bench`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.execution.protocol import Device
from harness.execution.run_settings import Effort
from harness.model.problem import BaseProblem


@dataclass(frozen=True)
class Ceilings:
    """Measured peak rates, as medians of cold runs."""

    copy_bytes_per_s: float
    """Bytes read plus written per second, for a copy of 1 GiB within device memory."""
    matrix_flops: float
    """FLOP per second of a product of random square matrices of 8192 with cuBLAS."""
    matrix_dtype: str
    """Dtype of those matrices. bfloat16 has float16's rate on every GPU, and CuPy multiplies only the latter."""


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """Result of one contender. A value that is not known is None."""

    variant: str
    """Name of the contender."""
    kind: str
    """`variant`, or `library` for third-party kernels."""
    verdict: str
    """`pass`, `fail`, `error`, `unsupported`."""
    reason: str | None = None
    """Why the verdict is not `pass`; None if it is."""
    rank: int | None = None
    """1 + the number of contenders that are certainly faster; indistinguishable ones share a rank. None if it did not
    pass."""
    time_ms: float | None = None
    """Median time of cold runs."""
    time_low_ms: float | None = None
    time_high_ms: float | None = None
    """Upper bound of the true median, with a confidence of 95 %; the previous field has the lower bound."""
    samples: int | None = None
    """Number of cold runs measured."""
    sustained_ms: float | None = None
    """Mean time of back-to-back runs, with warm caches and the clocks of a loaded GPU."""
    sustained_mhz: float | None = None
    """Median SM clock during the sustained runs; None without NVML."""
    held_down_by: str | None = None
    """Reason for a lowered clock during the sustained runs, from NVML; None if there is none or it is unknown."""
    plan_ms: float | None = None
    """Time to make the plan."""
    compile_ms: float | None = None
    """Time to compile and bind, or to load from the compilers' caches."""
    error_over_budget: float | None = None
    """Largest ratio of error to budget of the main output at the checked places, before and after timing."""
    sector_bytes: int | None = None
    """Bytes at the `sectors` level, as the variant claims them."""


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """All rows, best first, with the problem and the device."""

    problem: BaseProblem
    regime: str
    seed: int
    device: Device
    driver: str | None
    """Version of the GPU driver; None without NVML."""
    torch: str | None
    """Version of PyTorch; None if it has no rows."""
    libraries: Mapping[str, str] = field(default_factory=dict)
    """Versions of the libraries that have rows, by name, such as `cuDNN`."""
    ceilings: Ceilings
    floor_ms: float
    """Least possible time of the problem on this GPU; a shorter time is a measurement error."""
    effort: Effort
    rows: tuple[BenchRow, ...]

    @property
    def gpus(self) -> int:
        """GPUs that compute the problem together: as many as it has devices, if the machine has them."""
        return min(self.problem.devices, self.device.count)

    @property
    def something_ran(self) -> bool:
        """Whether at least one contender supported the problem."""
        return any(row.verdict != "unsupported" for row in self.rows)

    @property
    def failed(self) -> bool:
        """Whether a variant failed or raised an error. Failures of libraries do not count."""
        return any(row.kind == "variant" and row.verdict in ("fail", "error") for row in self.rows)


def in_order_of_merit(rows: Iterable[BenchRow]) -> tuple[BenchRow, ...]:
    """Rows sorted by verdict: passed (by rank and time), failed, error, unsupported."""
    order = {"pass": 0, "fail": 1, "error": 2, "unsupported": 3}
    return tuple(sorted(rows, key=lambda row: (order[row.verdict], row.rank or 0, row.time_ms or 0.0)))
