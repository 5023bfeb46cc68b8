"""One stored row: the result of one variant on one problem, with its device and time. Plain data, in plain units."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class KeptRow:
    """The result of one variant in one study. A value that is not known, or not finite, is None.

    The fields are the store's columns, in order. The names of byte counts give their level; `read_bytes` and
    `write_bytes` are counted at the `sectors` level.
    """

    id: int | None = None
    """The store's ID, ascending in the order of insertion; None before insertion."""
    kept_at: str | None = None
    """UTC time of insertion, such as `2026-03-01T12:00:00.000Z`, equal for all rows of one command; None before
    insertion."""
    study: str
    """The command: `compare`, `bench`, `traffic`, `fuzz`, `tune`."""
    operation: str
    problem: str | None = None
    """All fields of the problem, as a JSON object; None for a fuzzing campaign, which draws many problems."""
    headline: str | None = None
    """The problem in words."""
    regime: str | None = None
    """The distribution of the inputs."""
    seed: int | None = None
    variant: str
    algorithm: str | None = None
    backend: str | None = None
    """The toolchain, such as `cupy`."""
    tile: str | None = None
    """The tile sizes used, such as `Br=64,Bc=32`."""
    asked_tile: str | None = None
    """The tile sizes that the user requested; None if they were the default or chosen by `tune`."""
    kernel_digest: str | None = None
    """Digest of the kernels' PTX without source locations; see `plan_digest`."""
    device_kind: str | None = None
    """`gpu` or `emulator`."""
    device: str | None = None
    """Name of the device."""
    arch: str | None = None
    """Target architecture of the kernels, such as `sm_90`."""
    driver: str | None = None
    """Version of the GPU driver."""
    versions: str | None = None
    """Versions of Python and of the packages that determine the compiled kernel: a JSON object, name -> version."""
    verdict: str
    """One of `VERDICTS`."""
    reason: str | None = None
    """Why the verdict is not `pass`; None if it is."""
    max_abs_error: float | None = None
    """Largest |output - oracle| of the main output."""
    error_over_budget: float | None = None
    """Largest ratio of error to budget over all outputs."""
    error_over_expected: float | None = None
    """Largest ratio of error to expected error over all outputs."""
    compulsory_bytes: int | None = None
    claimed_bytes: int | None = None
    """Bytes read, by the variant's own formula; the next field has the bytes written."""
    requested_bytes: int | None = None
    """Bytes read as requested by the lanes; the next field has the bytes written."""
    read_bytes: int | None = None
    write_bytes: int | None = None
    l2_read_bytes: int | None = None
    """Bytes read from L2 by the cache model; the next three fields have L2 writes, DRAM reads and DRAM writes."""
    l2_write_bytes: int | None = None
    dram_read_bytes: int | None = None
    dram_write_bytes: int | None = None
    gpu_read_bytes: int | None = None
    """Bytes read by the GPU's own counters at the `sectors` level; the next fields have writes, L2 and DRAM."""
    gpu_write_bytes: int | None = None
    gpu_l2_read_bytes: int | None = None
    gpu_l2_write_bytes: int | None = None
    gpu_dram_read_bytes: int | None = None
    gpu_dram_write_bytes: int | None = None
    allocated_bytes: int | None = None
    launches: int | None = None
    time_ms: float | None = None
    """Median time on a GPU."""
    time_low_ms: float | None = None
    """Lower bound of the true median, with a confidence of 95 %; the next field has the upper bound."""
    time_high_ms: float | None = None
    sustained_ms: float | None = None
    """Mean time of back-to-back runs."""
    findings: int | None = None
    """Number of kinds of errors that the sanitizer found; None if it did not run."""
    examples: int | None = None
    """Number of cases that a campaign ran."""
    refused: int | None = None
    """Number of those cases that the variant did not support."""
    failing_case: str | None = None
    """Smallest failing case of a campaign, in the format of `fuzz --replay`; None if nothing failed."""
    local_bytes: int | None = None
    """Bytes of the threads' local memory, read plus written, at the `sectors` level."""

    @property
    def total_bytes(self) -> int | None:
        """Counted bytes read plus written, of global and local memory, at the `sectors` level."""
        if self.read_bytes is None or self.write_bytes is None:
            return None
        return self.read_bytes + self.write_bytes + (self.local_bytes or 0)


COLUMNS = tuple(field.name for field in fields(KeptRow))
"""Columns of the store's table `kept`, in order."""
