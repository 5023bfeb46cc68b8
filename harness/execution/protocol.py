"""Protocols of executors, which run a plan on given inputs and return outputs and counts, and of sanitizers.

The `gpu` and `emulator` executors implement it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from harness.compilers.ptxas import Resources
from harness.execution.traffic.counts import (
    LOCAL,
    READS,
    WRITES,
    CacheReport,
    SharedTraffic,
    SiteTraffic,
    TensorTraffic,
)
from harness.execution.traffic.instruction_counts import InstructionReport
from harness.model.finding import Finding
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.model.traffic import Link
from harness.model.variant import Variant
from harness.ptx.arithmetic import uses_tensor_cores
from harness.support.intervals import Interval
from harness.support.memory_units import SECTOR_BYTES


@dataclass(frozen=True)
class Device:
    """The device on which a plan ran."""

    kind: str
    """`gpu` or `emulator`."""
    name: str
    """Display name."""
    arch: str
    """The target architecture of kernels, such as `sm_90`."""
    count: int = 1
    """GPUs of the machine, over which the devices of a plan are divided; of the emulator, 1."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, not the emulator."""
        return self.kind == "gpu"


@dataclass(frozen=True)
class LaunchReport:
    """Report on one launch of a plan."""

    kernel: str
    traffic: tuple[SiteTraffic, ...] | None
    """Memory traffic by site; None if nothing was counted (on a GPU)."""
    warp_instructions: int | None = None
    """Warp-level PTX instructions executed."""
    lane_instructions: int | None = None
    """PTX instructions executed, summed over active lanes."""
    shared: tuple[SharedTraffic, ...] | None = None
    """Shared memory traffic; None if it was not requested. Atomics are not included."""
    tensor: tuple[TensorTraffic, ...] = ()
    """Traffic of tensor memory, and of operands of Blackwell's products in shared memory."""
    seconds: float | None = None
    """Wall-clock seconds that the emulator took."""
    ptx: str | None = field(default=None, repr=False)
    """PTX of the module that ran; None if unknown."""
    caches: CacheReport | None = None
    """Modelled cache traffic; None if it was not requested or `ptxas` is missing."""
    instructions: InstructionReport | None = None
    """Instruction counts by kind; None if they were not requested."""
    resources: Resources | None = None
    """Registers, shared memory and other resources of the kernel; None if `ptxas` was not run. It is run for cache
    models and for instruction counts."""
    notes: tuple[str, ...] = ()
    """Distinct remarks on behaviour that is undefined on a GPU, if the executor can detect it."""


@dataclass(frozen=True)
class Execution:
    """The outputs and reports of a run."""

    outputs: Mapping[str, np.ndarray]
    """The outputs that the plan stores, by name, each in its tensor's shape and dtype (bfloat16 as
    `ml_dtypes.bfloat16`). An optional output, such as attention's `lse`, is present only if the variant stores it."""
    launches: tuple[LaunchReport, ...]
    allocated_bytes: int
    """Bytes of scratch buffers and outputs that the plan allocates beyond the inputs."""
    time_ms: Interval | None = None
    """Time of all launches together on a GPU; None on the emulator."""
    unwritten: Mapping[str, npt.NDArray[np.bool_]] | None = None
    """For each output that looks unwritten: True where no thread stored. None if stores were not recorded."""
    findings: tuple[Finding, ...] | None = None
    """The sanitizer's findings for all launches and outputs; None if it did not run."""
    altered_variables: tuple[str, ...] = ()
    """Names of variables of the kernels' modules whose contents differ from before the run, if the executor can
    tell."""
    links: tuple[Link, ...] = ()
    """Bytes that copies moved between devices, as in `Traffic.links`."""

    def sector_bytes(self, kinds: tuple[str, ...], local: bool = False) -> int | None:
        """32 x sectors over all launches for these kinds of access, of global or with `local` of local memory.

        None if they were not counted.
        """
        total = 0
        for launch in self.launches:
            if launch.traffic is None:
                return None
            total += sum(s.sectors for s in launch.traffic if s.kind in kinds and (s.buffer == LOCAL) == local)
        return SECTOR_BYTES * total

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of all launches, without duplicates."""
        return tuple(dict.fromkeys(note for launch in self.launches for note in launch.notes))

    @property
    def uses_tensor_cores(self) -> bool | None:
        """Whether any of its kernels has matrix instructions; None if the code of one that may is not known."""
        texts = [launch.ptx for launch in self.launches]
        if any(text is not None and uses_tensor_cores(text) for text in texts):
            return True
        return None if any(text is None for text in texts) else False

    @property
    def accesses(self) -> tuple[SiteTraffic, ...]:
        """The counted accesses of all launches."""
        return tuple(site for launch in self.launches for site in launch.traffic or ())

    @property
    def read_bytes(self) -> int | None:
        """Bytes of global memory read at the `sectors` level, including atomics."""
        return self.sector_bytes(READS)

    @property
    def write_bytes(self) -> int | None:
        """Bytes of global memory written at the `sectors` level, including atomics."""
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
    """Runs plans. One object may run any number of them."""

    device: Device

    def run(self, problem: BaseProblem, plan: Plan, inputs: Mapping[str, np.ndarray]) -> Execution:
        """Run `plan` on `inputs`, C-contiguous arrays with the dtypes and shapes of the problem's input tensors.

        Raises `PlanError`, `CompileError`, `UnsupportedInstruction` or `KernelFault`; the executor stays usable.
        """
        ...


@runtime_checkable
class Preparer(Protocol):
    """An executor that can compile ahead of a run, from any thread."""

    device: Device

    def prepare(self, problem: BaseProblem, plan: Plan) -> None:
        """Compile all kernels that `plan` launches. Raises what `run` would raise for them."""
        ...


class Sanitizer(Protocol):
    """Detects errors in a variant besides a wrong answer, such as races."""

    name: str
    """Display name."""

    def check(
        self, variant: Variant, problem: BaseProblem, plan: Plan, inputs: Mapping[str, np.ndarray]
    ) -> tuple[Finding, ...]:
        """Return the findings, each kind once per line, in order of occurrence.

        Raises `SandboxError` if it cannot run.
        """
        ...
