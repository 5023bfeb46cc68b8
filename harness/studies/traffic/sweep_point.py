"""One point of a sweep: what one variant moves at one value. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from harness.execution.verdict import ERROR, FAIL, PASS, UNSUPPORTED
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import TileSizes
from harness.options.sweep import Value


@dataclass(frozen=True)
class SweepPoint:
    """One variant at one value."""

    variant: str
    algorithm: str
    backend: str
    value: Value
    problem: BaseProblem
    source: str | None
    """`counted` or `claimed`: where the bytes come from. None where there are none; `reason` says why."""
    read_bytes: int | None = None
    """Of global memory, at the `sectors` level."""
    write_bytes: int | None = None
    """Of global memory, at the `sectors` level."""
    local_bytes: int | None = None
    """Read and written in local memory, at the `sectors` level; None where not counted."""
    requested_bytes: int | None = None
    """Read and written, as the lanes asked for them; None where not counted."""
    claim_holds: bool | None = None
    """Claimed and counted bytes are equal; None where either is not known."""
    tile: TileSizes | None = None
    """The tile sizes that it used; None where it declares none."""
    answer_failure: str | None = None
    """What is wrong with the answer of the counted run; None where nothing is, or where it was not checked."""
    reason: str | None = None
    """Why there are no bytes."""
    supported: bool = True
    """Whether the variant takes the problem."""
    failed: bool = False
    """Something went wrong, as opposed to: the variant does not take the problem, or claims nothing."""

    @property
    def is_wrong(self) -> bool:
        """Whether it did not run to its end, or its answer or its claim is wrong."""
        return self.failed or self.answer_failure is not None or self.claim_holds is False

    @property
    def verdict(self) -> str | None:
        """One of `VERDICTS`; None where nothing ran, so that no answer was checked."""
        if not self.supported:
            return UNSUPPORTED
        if self.failed:
            return ERROR
        if self.source != "counted":
            return None
        return FAIL if self.is_wrong else PASS

    @property
    def total_bytes(self) -> int | None:
        """Read and written, at the `sectors` level, of global and of local memory."""
        if self.read_bytes is None or self.write_bytes is None:
            return None
        return self.read_bytes + self.write_bytes + (self.local_bytes or 0)

    @property
    def flops(self) -> int:
        """Of the two matrix products."""
        return self.problem.flops

    @property
    def intensity(self) -> float | None:
        """FLOP per byte at the `sectors` level."""
        return self.flops / self.total_bytes if self.total_bytes else None
