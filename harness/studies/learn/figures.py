"""The figures that a step can ask for: numbers that are counted when it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from harness.execution.protocol import Execution
from harness.execution.traffic.counts import LOCAL, READS, WRITES, Count, SharedTraffic, SiteTraffic
from harness.execution.traffic.instruction_counts import BARRIER, SHUFFLE, TENSOR
from harness.model.lesson import Figure
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.support.errors import PluginError
from harness.support.memory_units import SECTOR_BYTES


@dataclass(frozen=True)
class CountedRun:
    """A run of a step's kernels with all counters."""

    problem: BaseProblem
    plan: Plan
    execution: Execution

    def sites(self, buffer: str | None, kinds: tuple[str, ...] = ("load", "store", "atomic")) -> list[SiteTraffic]:
        """Accesses to global memory: to one buffer, or to all."""
        wanted = {buffer} if buffer is not None else None
        return [
            site
            for site in self.execution.accesses
            if site.kind in kinds and site.buffer != LOCAL and (wanted is None or site.buffer in wanted)
        ]

    @property
    def shared(self) -> list[SharedTraffic]:
        """Accesses to shared memory."""
        return [row for launch in self.execution.launches for row in launch.shared or ()]

    def instructions(self, kind: str | None = None, form: str = "") -> int:
        """Warp instructions of a kind, and whose opcode begins with `form`."""
        return sum(
            row.warps
            for launch in self.execution.launches
            if launch.instructions is not None
            for row in launch.instructions.counts
            if (kind is None or row.kind == kind) and row.form.startswith(form)
        )


Counter = Callable[[CountedRun, "str | None"], float]


def _sectors(sites: Iterable[SiteTraffic]) -> int:
    return Count.of(sites).sectors


def _sectors_per_request(run: CountedRun, buffer: str | None) -> float:
    count = Count.of(run.sites(buffer))
    return count.sectors / max(1, count.requests)


def _of_tensors(run: CountedRun, _: str | None) -> float:
    names = {tensor.buffer for tensor in run.problem.of_kernels.tensors}
    return sum(site.sector_bytes for site in run.sites(None) if site.buffer in names)


def _scratch(run: CountedRun, _: str | None) -> float:
    outputs = {tensor.name for tensor in run.problem.of_kernels.tensors}
    return sum(buffer.size_bytes for buffer in run.plan.buffers if buffer.name not in outputs)


def _shared_bytes(run: CountedRun, _: str | None) -> float:
    return max(
        (0 if report.resources is None else report.resources.shared_bytes) + step.shared_bytes
        for report, step in zip(run.execution.launches, run.plan.launches)
    )


def _ways(run: CountedRun, _: str | None) -> float:
    return max((row.wavefronts / max(1, row.ideal_wavefronts) for row in run.shared), default=1.0)


FIGURES: Mapping[str, Counter] = {
    "bytes": lambda run, buffer: sum(site.sector_bytes for site in run.sites(buffer)),
    "read_bytes": lambda run, buffer: SECTOR_BYTES * _sectors(run.sites(buffer, READS)),
    "write_bytes": lambda run, buffer: SECTOR_BYTES * _sectors(run.sites(buffer, WRITES)),
    "requested_bytes": lambda run, buffer: Count.of(run.sites(buffer)).requested_bytes,
    "bytes_of_tensors": _of_tensors,
    "scratch_bytes": _scratch,
    "requests": lambda run, buffer: Count.of(run.sites(buffer)).requests,
    "sectors": lambda run, buffer: _sectors(run.sites(buffer)),
    "sectors_per_request": _sectors_per_request,
    "launches": lambda run, _: len(run.plan.launches),
    "blocks": lambda run, _: max(math.prod(step.grid) for step in run.plan.launches),
    "shared_bytes": _shared_bytes,
    "shared_requests": lambda run, _: sum(row.requests for row in run.shared),
    "wavefronts": lambda run, _: sum(row.wavefronts for row in run.shared),
    "conflicts": lambda run, _: sum(row.wavefronts - row.ideal_wavefronts for row in run.shared),
    "ways": _ways,
    "instructions": lambda run, _: run.instructions(),
    "barriers": lambda run, _: run.instructions(form="bar"),
    "waits": lambda run, _: run.instructions(BARRIER),
    "shuffles": lambda run, _: run.instructions(SHUFFLE),
    "tensor_instructions": lambda run, _: run.instructions(TENSOR),
    "exponentials": lambda run, _: run.instructions(form="ex2"),
}
"""How each kind of `Figure` is counted. Bytes are at the `sectors` level except `requested_bytes`; `ways` is the
largest ratio of wavefronts to the fewest possible of any source line; `instructions` and the like count warp
instructions."""


def count(figure: Figure, run: CountedRun) -> float:
    """Return the figure of a run. Raises `PluginError` for an unknown kind."""
    if figure.kind not in FIGURES:
        raise PluginError(f"a figure has kind {figure.kind!r}; kinds: {', '.join(FIGURES)}")
    return FIGURES[figure.kind](run, figure.buffer)


def shown(value: float | None) -> str:
    """Return a figure as text: whole numbers in full, others with three digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
