"""Predicts the time of a profile on a GPU as a sum of costs; docs/predicted-time.md describes the model.

Each launch occupies resources for a number of cycles of one multiprocessor, each cycle for a cause. Resources overlap
in part: busy^2 is the sum of their squares. Uneven work multiplies it; unhidden loads and launches are added.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.studies.why import causes
from harness.studies.why.profile import LaunchProfile, Profile
from harness.studies.why.shares import DRAM, ISSUE, RESOURCES, TENSOR_CORES, Share, filled_slots, shares_of, totals
from harness.studies.why.stalls import Stalls, blocks_there, stalls_of
from harness.support.gpu_data_sheets import SCHEDULERS, WARP_LANES, Gpu
from harness.support.pipe_rates import LAUNCH_SECONDS, clock_hz


@dataclass(frozen=True)
class LaunchTime:
    """The parts of one launch's time, in cycles of one multiprocessor."""

    shares: tuple[Share, ...]
    tail: float
    """Factor - 1 for blocks that do not divide evenly among multiprocessors."""
    imbalance: float
    """Factor - 1 for blocks with unequal work."""
    stalls: Stalls
    vacancy: float = 0.0
    """Factor - 1 for issue slots that stay empty because the grid has fewer blocks than fit."""
    splitting: float = 0.0
    """Cycles that would be saved by one launch instead of this kernel's several."""

    @property
    def busy_cycles(self) -> float:
        """Busy cycles of one multiprocessor if all had the same work."""
        return math.hypot(*totals(self.shares).values())

    @property
    def evenness(self) -> float:
        """Cycles of the busiest multiprocessor, without stalls / `busy_cycles`."""
        return 1 + self.tail + self.imbalance + self.vacancy

    @property
    def cycles(self) -> float:
        """Total cycles."""
        return self.busy_cycles * self.evenness + self.stalls.cycles() + self.splitting


@dataclass(frozen=True)
class PredictedTime:
    """A variant's time, in parts that add up."""

    gpu: Gpu
    kernels: tuple[LaunchTime, ...]
    """One entry per kernel, with its launches together."""
    launches: int

    @property
    def seconds(self) -> float:
        """Total seconds."""
        return self.launches * LAUNCH_SECONDS + sum(kernel.cycles for kernel in self.kernels) / clock_hz(self.gpu)

    @property
    def shares(self) -> tuple[Share, ...]:
        """Shares of all kernels, weighted so that the squares of their totals add up to `busy_cycles` squared."""
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
        """Busy cycles of one multiprocessor if all had the same work, summed over kernels."""
        return sum(kernel.busy_cycles for kernel in self.kernels)

    def weighted(self, factor: str) -> float:
        """`tail`, `imbalance` or `vacancy` of all kernels, weighted by their time."""
        busy = self.busy_cycles
        return sum(kernel.busy_cycles * getattr(kernel, factor) for kernel in self.kernels) / busy if busy else 0.0


def predict(profile: Profile, gpu: Gpu) -> PredictedTime:
    """The predicted time of all launches."""
    by_kernel: dict[str, list[LaunchProfile]] = {}
    for launch in profile.launches:
        by_kernel.setdefault(launch.kernel, []).append(launch)
    kernels = tuple(_of_kernel(launches, gpu) for launches in by_kernel.values())
    return PredictedTime(gpu, kernels, len(profile.launches))


def roofline(profile: Profile, gpu: Gpu) -> PredictedTime:
    """The least time of the problem: its compulsory bytes and its matrix products, and nothing else."""
    problem = profile.problem
    per_second = gpu.multiprocessors * clock_hz(gpu)
    peak = gpu.tensor_flops.get(problem.outputs[0].dtype)
    shares = (
        Share(DRAM, causes.BYTES, problem.compulsory_bytes / gpu.memory_bytes_per_s * clock_hz(gpu)),
        Share(TENSOR_CORES, causes.ARITHMETIC, problem.flops * clock_hz(gpu) / peak)
        if peak
        else Share(ISSUE, causes.ARITHMETIC, problem.flops / 2 / WARP_LANES / SCHEDULERS / per_second * clock_hz(gpu)),
    )
    return PredictedTime(gpu, (LaunchTime(shares, 0.0, 0.0, Stalls(0, 0, 0, 1, 0)),), 1)


def _of_kernel(launches: Sequence[LaunchProfile], gpu: Gpu) -> LaunchTime:
    """Combine all launches of one kernel into one, with the cost of not being one."""
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
    # If there are fewer blocks than fit, more slots stay empty.
    there = filled_slots(launch, launch.resident_blocks) / filled_slots(launch, blocks_there(launch, gpu))
    longer = math.hypot(*{**cycles, ISSUE: cycles[ISSUE] * there}.values()) / busy if busy else 1.0
    vacancy = (longer - 1) * (1 + tail + imbalance)
    return LaunchTime(shares, tail, imbalance, stalls_of(launch, gpu, busy), vacancy)


def _work(launches: Sequence[LaunchProfile]) -> list[int]:
    """Work of each cluster, averaged if clusters share work dynamically, which differs on a GPU."""
    work: list[int] = []
    for report in (launch.instructions for launch in launches):
        mean = sum(report.clusters) // len(report.clusters)
        work += [mean] * len(report.clusters) if report.are_connected else report.clusters
    return work


def unevenness(work: Sequence[int], places: int) -> tuple[float, float]:
    """(tail, imbalance): the busiest of `places` / mean, split in two parts, for a greedy assignment of whole blocks.

    Blocks are assigned in order to the place with the least work. The first part assumes equal blocks.
    """
    total = sum(work)
    if not total:
        return 0.0, 0.0
    tail = -(-len(work) // places) * places / len(work) - 1
    loads = [0] * min(places, len(work))
    for amount in work:
        heapq.heapreplace(loads, loads[0] + amount)
    return tail, max(loads) * places / total - 1 - tail
