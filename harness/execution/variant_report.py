"""Details of one attempt beyond its row, as plain data that is small enough to store for every variant."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from harness.compilers import toolchains
from harness.execution.attempt import Attempt
from harness.execution.judging.error_map import ErrorMap
from harness.execution.judging.question import Question
from harness.execution.protocol import Device
from harness.execution.run_settings import RunSettings
from harness.execution.traffic.line_costs import LineCost, line_costs
from harness.execution.traffic.traffic_account import TrafficAccount, account
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
    """Dynamic shared memory per block, in bytes."""
    cluster: tuple[int, ...] | None
    """Thread blocks per cluster in x, y, z; None without clusters."""
    warp_instructions: int | None
    """Warp-level PTX instructions executed; None if they were not counted."""


@dataclass(frozen=True, kw_only=True)
class VariantReport:
    """Details of one variant beyond its row in the comparison. A value that is not known is None."""

    variant: str
    backend: str
    launches: tuple[LaunchShape, ...] = ()
    """Launches of its plan; empty if planning failed."""
    account: TrafficAccount | None = None
    """Its memory traffic; None if it was not counted."""
    lines: tuple[LineCost, ...] = ()
    """Cost of each source line, with findings."""
    texts: tuple[tuple[str, str], ...] = ()
    """Kernel names and source texts, if the cost of no line is known."""
    errors: tuple[ErrorMap, ...] = ()
    """Error maps of its required outputs, the main one first."""
    uses_tensor_cores: bool | None = None
    """Whether its code uses tensor cores; None if the code is unknown."""
    time_ms: Interval | None = None
    """Time of all launches together on a GPU."""

    @classmethod
    def of(cls, done: Attempt, question: Question, settings: RunSettings, device: Device) -> VariantReport:
        """Build the report of an attempt. `device` is where bytes were counted."""
        counted, accuracy = done.counted, done.accuracy
        bytes_known = counted is not None and all(launch.traffic is not None for launch in counted.launches)
        sums = None
        if done.plan is not None and counted is not None and bytes_known:
            names = done.plan.all_buffers(done.problem)
            sizes = done.plan.device_bytes(done.problem)
            sums = account(done.variant.name, done.problem, settings, device, counted, done.claim, names, sizes)
        lines = line_costs(sums, done.findings or ())
        held = {} if accuracy is None else accuracy.by_output
        outputs = [t for t in question.problem.tensors if t.name in held]
        return cls(
            variant=done.variant.name,
            backend=done.variant.backend,
            launches=_shapes(done),
            account=sums,
            lines=lines,
            texts=() if lines else _texts(done),
            errors=tuple(ErrorMap.of(t.name, t.axes, held[t.name]) for t in outputs),
            uses_tensor_cores=None if counted is None else counted.uses_tensor_cores,
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
    """Distinct source texts. A kernel whose process has ended has none."""
    found: dict[str, str] = {}
    for launch in () if done.plan is None else done.plan.launches:
        with contextlib.suppress(SandboxError):
            found.setdefault(toolchains.toolchain_of(launch.kernel).source(launch.kernel), launch.kernel_name)
    return tuple((kernel, text) for text, kernel in found.items())
