"""One point of a sweep: the bytes that one variant moves at one value. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from harness.execution.judging.verdict import ERROR, FAIL, PASS, UNSUPPORTED
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import TileSizes
from harness.options.sweep import Value


@dataclass(frozen=True)
class SweepPoint:
    """One variant at one value of the swept field."""

    variant: str
    algorithm: str
    backend: str
    value: Value
    problem: BaseProblem
    source: str | None
    """Source of the bytes, `counted` or `claimed`; None if there are none, for the reason in `reason`."""
    read_bytes: int | None = None
    """Bytes of global memory read, at the `sectors` level."""
    write_bytes: int | None = None
    """Bytes of global memory written, at the `sectors` level."""
    local_bytes: int | None = None
    """Bytes of local memory, read plus written, at the `sectors` level; None if not counted."""
    requested_bytes: int | None = None
    """Bytes requested by the lanes, read plus written; None if not counted."""
    uses_tensor_cores: bool | None = None
    """Whether a kernel has matrix instructions; None if it was not compiled."""
    claim_holds: bool | None = None
    """Whether claimed and counted bytes are equal; None if either is unknown."""
    tile: TileSizes | None = None
    """The tile sizes used; None if the variant declares none."""
    answer_failure: str | None = None
    """What is wrong with the answer of the counted run; None if nothing is or if it was not checked."""
    reason: str | None = None
    """Why there are no bytes."""
    supported: bool = True
    """Whether the variant supports the problem."""
    failed: bool = False
    """Whether something went wrong, as opposed to the problem being unsupported or there being no claim."""

    @property
    def is_wrong(self) -> bool:
        """Whether the run failed, or its answer or its claim is wrong."""
        return self.failed or self.answer_failure is not None or self.claim_holds is False

    @property
    def verdict(self) -> str | None:
        """One of `VERDICTS`; None if nothing ran, so that no answer was checked."""
        if not self.supported:
            return UNSUPPORTED
        if self.failed:
            return ERROR
        if self.source != "counted":
            return None
        return FAIL if self.is_wrong else PASS

    @property
    def total_bytes(self) -> int | None:
        """Bytes of global and local memory, read plus written, at the `sectors` level; None if unknown."""
        if self.read_bytes is None or self.write_bytes is None:
            return None
        return self.read_bytes + self.write_bytes + (self.local_bytes or 0)

    @property
    def flops(self) -> int:
        """Floating-point operations of the problem's matrix products (`BaseProblem.flops`)."""
        return self.problem.flops

    @property
    def intensity(self) -> float | None:
        """FLOP per byte at the `sectors` level; None if there are no bytes."""
        return self.flops / self.total_bytes if self.total_bytes else None
