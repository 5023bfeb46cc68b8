"""The protocol of the two executors, `gpu` and `emulator`: run a plan on given inputs, return outputs and counts.

And that of sanitizers, which run it for its mistakes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from harness.compilers.ptxas import Resources
from harness.execution.counts import LOCAL, READS, SECTOR_BYTES, WRITES, CacheReport, SharedTraffic, SiteTraffic
from harness.execution.instruction_counts import InstructionReport
from harness.model.finding import Finding
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.intervals import Interval


@dataclass(frozen=True)
class Device:
    """Where a plan ran."""

    kind: str
    """`gpu` or `emulator`."""
    name: str
    """What to show a person."""
    arch: str
    """The instruction set that kernels are compiled for, such as `sm_90`."""


@dataclass(frozen=True)
class LaunchReport:
    """One launch of a plan, after the run."""

    kernel: str
    traffic: tuple[SiteTraffic, ...] | None
    """None where nothing was counted (the GPU)."""
    warp_instructions: int | None = None
    """PTX instructions executed, a warp's counted once."""
    lane_instructions: int | None = None
    """The same, counted once per active lane."""
    shared: tuple[SharedTraffic, ...] | None = None
    """None where it was not counted, which it is only where asked for. Atomics are not in it."""
    seconds: float | None = None
    """Wall-clock seconds the emulator took."""
    ptx: str | None = field(default=None, repr=False)
    """The module that ran; None where nobody knows it."""
    caches: CacheReport | None = None
    """None where caches were not modelled, which they are only where asked for and `ptxas` is there."""
    instructions: InstructionReport | None = None
    """None where instructions were not counted by kind, which they are only where asked for."""
    resources: Resources | None = None
    """What the kernel takes of a multiprocessor; None where nobody asked `ptxas`, as beside caches or instructions."""
    notes: tuple[str, ...] = ()
    """What the kernel did that is undefined on a GPU, once each, where the executor can tell."""


@dataclass(frozen=True)
class Execution:
    """What a run left behind."""

    outputs: Mapping[str, np.ndarray]
    """`O` in the problem's dtype (bfloat16 as `ml_dtypes.bfloat16`) and `lse` where the variant stores it."""
    launches: tuple[LaunchReport, ...]
    allocated_bytes: int
    """Scratch and outputs that the plan allocated beyond Q, K and V."""
    time_ms: Interval | None = None
    """Time on the GPU of all launches together, or None."""
    unwritten: Mapping[str, npt.NDArray[np.bool_]] | None = None
    """Of outputs that look so: the elements that no thread stored to. None where nobody looked."""
    findings: tuple[Finding, ...] | None = None
    """What the sanitizer found in all launches, and in the outputs; None where it did not look."""
    altered_variables: tuple[str, ...] = ()
    """Variables of the kernels' modules that hold something else than before the run, where the executor can tell."""

    def sector_bytes(self, kinds: tuple[str, ...], local: bool = False) -> int | None:
        """32 x sectors over all launches for these kinds of access; None where not counted.

        Of global memory, or with `local` of the threads' local memory.
        """
        total = 0
        for launch in self.launches:
            if launch.traffic is None:
                return None
            total += sum(s.sectors for s in launch.traffic if s.kind in kinds and (s.buffer == LOCAL) == local)
        return SECTOR_BYTES * total

    @property
    def notes(self) -> tuple[str, ...]:
        """Those of all launches, each once."""
        return tuple(dict.fromkeys(note for launch in self.launches for note in launch.notes))

    @property
    def read_bytes(self) -> int | None:
        """Bytes of global memory read at the `sectors` level. An atomic reads and writes."""
        return self.sector_bytes(READS)

    @property
    def write_bytes(self) -> int | None:
        """Bytes of global memory written at the `sectors` level."""
        return self.sector_bytes(WRITES)

    @property
    def local_read_bytes(self) -> int | None:
        """Bytes of local memory read at the `sectors` level."""
        return self.sector_bytes(READS, local=True)

    @property
    def local_write_bytes(self) -> int | None:
        """Bytes of local memory written at the `sectors` level."""
        return self.sector_bytes(WRITES, local=True)


class Executor(Protocol):
    """Runs plans. One object may run many."""

    device: Device

    def run(self, problem: BaseProblem, plan: Plan, inputs: Mapping[str, np.ndarray]) -> Execution:
        """Run `plan` on inputs Q, K and V (C-contiguous, in the problem's dtype and shapes).

        Raises `PlanError`, `CompileError`, `UnsupportedInstruction` or `KernelFault`; the executor stays usable.
        """
        ...


@runtime_checkable
class Preparer(Protocol):
    """An executor that can compile ahead of a run, from any thread."""

    def prepare(self, problem: BaseProblem, plan: Plan) -> None:
        """Compile all that `plan` launches. Raises what `run` would raise for it."""
        ...


class Sanitizer(Protocol):
    """Finds what is wrong with a variant besides its answer."""

    name: str
    """What did the looking, for reports."""

    def check(
        self, variant: Variant, problem: BaseProblem, plan: Plan, inputs: Mapping[str, np.ndarray]
    ) -> tuple[Finding, ...]:
        """What was found, each kind at each line once, first met first. Raises `SandboxError` where it cannot look."""
        ...
