"""One row that is kept: what one variant came to, of what, where, and when. Plain data, in plain units."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class KeptRow:
    """What one variant came to in one study. What is not known is None, never 0; so is a number that is not finite.

    The fields are the store's columns, in order. Bytes have the level that their name says; `read_bytes` and
    `write_bytes` are counted, at the `sectors` level.
    """

    id: int | None = None
    """The store's own number, in the order in which rows were kept; None until then."""
    kept_at: str | None = None
    """When it was kept, UTC, such as `2026-03-01T12:00:00.000Z`; the same for all rows of one command."""
    study: str
    """The command: `compare`, `bench`, `traffic`, `fuzz`, `tune`."""
    operation: str
    problem: str | None = None
    """All fields of the problem, as a JSON object; None for a campaign, which draws problems."""
    headline: str | None = None
    """The same in words, for people."""
    regime: str | None = None
    """How the inputs were drawn."""
    seed: int | None = None
    variant: str
    algorithm: str | None = None
    backend: str | None = None
    """The toolchain, such as `cupy`."""
    tile: str | None = None
    """The tile sizes that it used, such as `Br=64,Bc=32`."""
    asked_tile: str | None = None
    """Those of them that were asked for; None where the variant, or `tune` before, chose."""
    kernel_digest: str | None = None
    """Of its kernels' PTX, without what only says where the source lies: see `plan_digest`."""
    device_kind: str | None = None
    """`gpu` or `emulator`."""
    device: str | None = None
    """Its name."""
    arch: str | None = None
    """What kernels were compiled for, such as `sm_90`."""
    driver: str | None = None
    """The GPU driver's version."""
    versions: str | None = None
    """Packages that decide what a kernel becomes, and Python: a JSON object, name -> version."""
    verdict: str
    """One of `VERDICTS`."""
    reason: str | None = None
    """Why the verdict is not `pass`."""
    max_abs_error: float | None = None
    """Largest |output - oracle| of the main output."""
    error_over_budget: float | None = None
    """The largest error over its budget, of all outputs."""
    error_over_expected: float | None = None
    """The largest error over what is expected, of all outputs."""
    compulsory_bytes: int | None = None
    claimed_bytes: int | None = None
    """Read and written, as the variant's own closed form says."""
    requested_bytes: int | None = None
    """Read and written, as the lanes asked for them."""
    read_bytes: int | None = None
    write_bytes: int | None = None
    l2_read_bytes: int | None = None
    """As the caches that were modelled leave it; so are the next three."""
    l2_write_bytes: int | None = None
    dram_read_bytes: int | None = None
    dram_write_bytes: int | None = None
    gpu_read_bytes: int | None = None
    """What the GPU's own counters say, at the `sectors` level; at L2 and DRAM the next ones."""
    gpu_write_bytes: int | None = None
    gpu_l2_read_bytes: int | None = None
    gpu_l2_write_bytes: int | None = None
    gpu_dram_read_bytes: int | None = None
    gpu_dram_write_bytes: int | None = None
    allocated_bytes: int | None = None
    launches: int | None = None
    time_ms: float | None = None
    """Median, on a GPU."""
    time_low_ms: float | None = None
    """The true median lies between this and the next, with a confidence of 95 %."""
    time_high_ms: float | None = None
    sustained_ms: float | None = None
    """Mean, run back to back."""
    findings: int | None = None
    """How many kinds of mistakes the sanitizer found; None where it did not look."""
    examples: int | None = None
    """Of a campaign: cases run."""
    refused: int | None = None
    """Those of them that the variant did not take."""
    failing_case: str | None = None
    """Of a campaign that found something: the smallest, as `fuzz --replay` takes it."""
    local_bytes: int | None = None
    """Read and written in the threads' local memory, at the `sectors` level."""

    @property
    def total_bytes(self) -> int | None:
        """Read and written, counted, at the `sectors` level, of global and of local memory."""
        if self.read_bytes is None or self.write_bytes is None:
            return None
        return self.read_bytes + self.write_bytes + (self.local_bytes or 0)


COLUMNS = tuple(field.name for field in fields(KeptRow))
"""Of the store's table `kept`, in order."""
