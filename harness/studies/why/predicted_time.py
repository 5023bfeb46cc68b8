"""The time that a profile should take on a GPU, as a sum of costs: the model that docs/why.md describes.

Each launch keeps resources busy for so many cycles of one multiprocessor, each cycle for a cause. Resources overlap in
part: busy^2 is the sum of their squares. Uneven work multiplies it, loads that nobody hides and launches are added.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.execution.instruction_counts import (
    WARP_LANES,
)
from harness.studies.why import causes
from harness.studies.why.profile import LaunchProfile, Profile
from harness.studies.why.shares import DRAM, ISSUE, RESOURCES, TENSOR_CORES, Share, filled_slots, shares_of, totals
from harness.studies.why.stalls import Stalls, blocks_there, stalls_of
from harness.support.gpus import Gpu
from harness.support.pipe_rates import (
    LAUNCH_SECONDS,
    SCHEDULERS,
    clock_hz,
)


@dataclass(frozen=True)
class LaunchTime:
    """The parts of one launch's time, in cycles of one multiprocessor."""

    shares: tuple[Share, ...]
    tail: float
    """What is to be multiplied with because blocks do not come out even, less 1."""
    imbalance: float
    """The same because blocks differ."""
    stalls: Stalls
    splitting: float = 0.0
    """Cycles that one launch for all that this kernel does would save."""

    @property
    def busy_cycles(self) -> float:
        """Of one multiprocessor if all had the same work."""
        return math.hypot(*totals(self.shares).values())

    @property
    def evenness(self) -> float:
        """How much longer than that the busiest multiprocessor takes."""
        return 1 + self.tail + self.imbalance

    @property
    def cycles(self) -> float:
        """All of it."""
        return self.busy_cycles * self.evenness + self.stalls.cycles() + self.splitting


@dataclass(frozen=True)
class PredictedTime:
    """A variant's time, in parts that add up."""

    gpu: Gpu
    kernels: tuple[LaunchTime, ...]
    """A kernel's launches together."""
    launches: int

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.launches * LAUNCH_SECONDS + sum(kernel.cycles for kernel in self.kernels) / clock_hz(self.gpu)

    @property
    def shares(self) -> tuple[Share, ...]:
        """Of all kernels, weighted such that the squares of their totals add up to the square of `busy_cycles`."""
        whole = [(kernel, kernel.busy_cycles) for kernel in self.kernels]
        busy = sum(cycles for _, cycles in whole)
        squares = dict.fromkeys(RESOURCES, 0.0)
        plain = dict.fromkeys(RESOURCES, 0.0)
        for kernel, cycles in whole:
            for resource, total in totals(kernel.shares).items():
                squares[resource] += total**2 * busy / cycles if cycles else 0.0
                plain[resource] += total
        weight = {name: math.sqrt(squares[name]) / plain[name] if plain[name] else 0.0 for name in RESOURCES}
        return tuple(
            replace(share, cycles=weight[share.resource] * share.cycles)
            for kernel, _ in whole
            for share in kernel.shares
        )

    @property
    def busy_cycles(self) -> float:
        """Of one multiprocessor if all had the same work."""
        return sum(kernel.busy_cycles for kernel in self.kernels)

    def weighted(self, factor: str) -> float:
        """`tail` or `imbalance` of all kernels, in proportion to what they take."""
        busy = self.busy_cycles
        return sum(kernel.busy_cycles * getattr(kernel, factor) for kernel in self.kernels) / busy if busy else 0.0


def predict(profile: Profile, gpu: Gpu) -> PredictedTime:
    """The time of all launches."""
    by_kernel: dict[str, list[LaunchProfile]] = {}
    for launch in profile.launches:
        by_kernel.setdefault(launch.kernel, []).append(launch)
    kernels = tuple(_of_kernel(launches, gpu) for launches in by_kernel.values())
    return PredictedTime(gpu, kernels, len(profile.launches))


def roofline(profile: Profile, gpu: Gpu) -> PredictedTime:
    """The least that the problem can take: its compulsory bytes and its products, and nothing else."""
    problem = profile.problem
    per_second = gpu.multiprocessors * clock_hz(gpu)
    peak = gpu.tensor_flops.get(problem.outputs[0].dtype)
    shares = (
        Share(DRAM, causes.BYTES, problem.compulsory_bytes / gpu.memory_bytes_per_s * clock_hz(gpu)),
        Share(TENSOR_CORES, causes.ARITHMETIC, problem.flops * clock_hz(gpu) / peak)
        if peak
        else Share(ISSUE, causes.ARITHMETIC, problem.flops / 2 / WARP_LANES / SCHEDULERS / per_second * clock_hz(gpu)),
    )
    return PredictedTime(gpu, (LaunchTime(shares, 0.0, 0.0, Stalls(0, 0, 0, 1, 1, 0)),), 1)


def _of_kernel(launches: Sequence[LaunchProfile], gpu: Gpu) -> LaunchTime:
    """All launches of one kernel as if they were one, and what it costs that they are not."""
    times = [_of_launch(launch, gpu) for launch in launches]
    if len(times) == 1:
        return times[0]
    shares = tuple(share for time in times for share in time.shares)
    tail, imbalance = unevenness(_work(launches), gpu.multiprocessors)
    stalls = max((time.stalls for time in times), key=lambda stalls: stalls.cycles())
    stalls = replace(stalls, rounds=sum(time.stalls.rounds for time in times))
    together = LaunchTime(shares, tail, imbalance, stalls)
    return replace(together, splitting=sum(time.cycles for time in times) - together.cycles)


def _of_launch(launch: LaunchProfile, gpu: Gpu) -> LaunchTime:
    shares = tuple(shares_of(launch, gpu))
    tail, imbalance = unevenness(_work([launch]), gpu.multiprocessors)
    cycles = totals(shares)
    busy = math.hypot(*cycles.values())
    # Fewer blocks than fit leave more slots empty.
    there = filled_slots(launch, launch.resident_blocks) / filled_slots(launch, blocks_there(launch, gpu))
    longer = math.hypot(*{**cycles, ISSUE: cycles[ISSUE] * there}.values()) / busy if busy else 1.0
    tail = longer * (1 + tail + imbalance) - 1 - imbalance
    return LaunchTime(shares, tail, imbalance, stalls_of(launch, gpu, busy))


def _work(launches: Sequence[LaunchProfile]) -> list[int]:
    """Of each cluster; all the same where they share it out themselves, which they do otherwise on a GPU."""
    work: list[int] = []
    for report in (launch.instructions for launch in launches):
        mean = sum(report.clusters) // len(report.clusters)
        work += [mean] * len(report.clusters) if report.are_connected else report.clusters
    return work


def unevenness(work: Sequence[int], places: int) -> tuple[float, float]:
    """(tail, imbalance): how much longer than the mean the busiest of `places` works, for it is given whole blocks.

    Blocks go in order to whoever has had least. The first part is that of blocks of the same work each.
    """
    total = sum(work)
    if not total:
        return 0.0, 0.0
    tail = -(-len(work) // places) * places / len(work) - 1
    loads = [0] * min(places, len(work))
    for amount in work:
        heapq.heapreplace(loads, loads[0] + amount)
    return tail, max(loads) * places / total - 1 - tail
