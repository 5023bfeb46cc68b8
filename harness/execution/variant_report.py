"""All that one attempt shows of a variant, besides its row: plain data, small enough to keep for every variant."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from harness.compilers import toolchains
from harness.execution.attempt import Attempt
from harness.execution.error_map import ErrorMap
from harness.execution.line_costs import LineCost, line_costs
from harness.execution.protocol import Device, LaunchReport
from harness.execution.question import Question
from harness.execution.traffic_account import TrafficAccount, account
from harness.model.problem import OPTIONAL_OUTPUT
from harness.ptx.arithmetic import uses_tensor_cores
from harness.support.errors import SandboxError
from harness.support.intervals import Interval


@dataclass(frozen=True)
class LaunchShape:
    """One launch of a plan."""

    kernel: str
    grid: tuple[int, ...]
    """Thread blocks in x, y, z."""
    block: tuple[int, ...]
    """Threads per block."""
    shared_bytes: int
    """Dynamic shared memory per block."""
    cluster: tuple[int, ...] | None
    """Thread blocks of a cluster, where there are clusters."""
    warp_instructions: int | None
    """PTX instructions executed, a warp's counted once; None where nobody counted."""


@dataclass(frozen=True, kw_only=True)
class VariantReport:
    """What is shown of one variant beside its row in the comparison. What is not known is None."""

    variant: str
    backend: str
    launches: tuple[LaunchShape, ...] = ()
    """Of its plan; none where it did not plan."""
    account: TrafficAccount | None = None
    """Its bytes; None where they were not counted."""
    lines: tuple[LineCost, ...] = ()
    """The same by source line, with findings."""
    texts: tuple[tuple[str, str], ...] = ()
    """Kernels and their authors' own texts, where no line is known to cost anything."""
    errors: tuple[ErrorMap, ...] = ()
    """Of its outputs, the main one first, optional ones left out."""
    uses_tensor_cores: bool | None = None
    """Whether its code has products for them; None where nobody saw the code."""
    time_ms: Interval | None = None
    """On a GPU, all launches together."""

    @classmethod
    def of(cls, done: Attempt, question: Question, regime: str, seed: int, device: Device) -> VariantReport:
        """`device`: where bytes were counted."""
        counted, accuracy = done.counted, done.accuracy
        bytes_known = counted is not None and all(launch.traffic is not None for launch in counted.launches)
        sums = None
        if done.plan is not None and counted is not None and bytes_known:
            names = done.plan.all_buffers(done.problem)
            sums = account(done.variant.name, done.problem, regime, seed, device, counted, done.claim, names)
        lines = line_costs(sums, done.findings or ())
        held = {} if accuracy is None else accuracy.by_output
        outputs = [t for t in question.problem.tensors if t.name in held and t.role != OPTIONAL_OUTPUT]
        return cls(
            variant=done.variant.name,
            backend=done.variant.backend,
            launches=_shapes(done),
            account=sums,
            lines=lines,
            texts=() if lines else _texts(done),
            errors=tuple(ErrorMap.of(t.name, t.axes, held[t.name]) for t in outputs),
            uses_tensor_cores=None if counted is None else _uses_tensor_cores(counted.launches),
            time_ms=None if done.execution is None else done.execution.time_ms,
        )


def _shapes(done: Attempt) -> tuple[LaunchShape, ...]:
    if done.plan is None:
        return ()
    ran = () if done.counted is None else done.counted.launches
    executed = [launch.warp_instructions for launch in ran] or [None] * len(done.plan.launches)
    return tuple(
        LaunchShape(launch.kernel_name, launch.grid, launch.block, launch.shared_bytes, launch.cluster, instructions)
        for launch, instructions in zip(done.plan.launches, executed)
    )


def _texts(done: Attempt) -> tuple[tuple[str, str], ...]:
    """Each text once; a kernel whose process is gone has none."""
    found: dict[str, str] = {}
    for launch in () if done.plan is None else done.plan.launches:
        with contextlib.suppress(SandboxError):
            found.setdefault(toolchains.toolchain_of(launch.kernel).source(launch.kernel), launch.kernel_name)
    return tuple((kernel, text) for text, kernel in found.items())


def _uses_tensor_cores(launches: tuple[LaunchReport, ...]) -> bool | None:
    texts = [launch.ptx for launch in launches]
    if any(text is not None and uses_tensor_cores(text) for text in texts):
        return True
    return None if any(text is None for text in texts) else False
