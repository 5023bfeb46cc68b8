"""A variant's profile for the time model: counters of its launches, and the number of resident blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.compilers.ptxas import Resources
from harness.emulator.memory.residency import residency
from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.planning.variant_calls import compiled_launches
from harness.execution.protocol import Executor
from harness.execution.traffic.counts import LOCAL, READS, CacheReport, SharedTraffic, SiteTraffic
from harness.execution.traffic.instruction_counts import InstructionReport, LoadWait
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.gpu_data_sheets import WARP_LANES, Multiprocessor


@dataclass(frozen=True)
class LaunchProfile:
    """The profile of one launch."""

    kernel: str
    blocks: int
    threads: int
    """Threads per block."""
    resident_blocks: int
    """Resident blocks per multiprocessor, at least 1."""
    limited_by: str | None
    """The resource that limits residency; None if `ptxas`, which reports registers, is missing."""
    used: Resources | None
    """Resource usage of the kernel; None if `ptxas` is missing."""
    dynamic_shared_bytes: int
    traffic: tuple[SiteTraffic, ...]
    shared: tuple[SharedTraffic, ...]
    caches: CacheReport | None
    """Modelled cache traffic; None if `ptxas` is missing."""
    instructions: InstructionReport

    @property
    def warps(self) -> int:
        """Warps per block."""
        return -(-self.threads // WARP_LANES)

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory, read plus written, at the `sectors` level."""
        return sum(site.sector_bytes for site in self.traffic if site.buffer == LOCAL)

    def local_share(self, wait: LoadWait) -> float:
        """The share, from 0 to 1, of local memory loads among the loads on a wait's line."""
        local = everything = 0
        for site in () if wait.is_copy else self.traffic:
            if site.kind in READS and (site.file, site.line) == (wait.file, wait.line):
                everything += site.requests
                local += site.requests if site.buffer == LOCAL else 0
        return local / everything if everything else 0.0


@dataclass(frozen=True)
class Profile:
    """The profile of one variant on one problem."""

    variant: str
    problem: BaseProblem
    launches: tuple[LaunchProfile, ...]
    verdict: str | None = None
    """One of `VERDICTS`; None if the answer was not checked."""
    reason: str | None = None
    """Why the verdict is not `pass`; None if it is."""


def profile_of(variant: Variant, question: Question, executor: Executor, sm: Multiprocessor) -> Profile:
    """Run the variant once with all counters, and check the answer; the profile has the verdict.

    Raises `UnsupportedProblem`, and whatever planning, compiling and running raise.
    """
    done = attempt(variant, question.problem, executor, question=question)
    done.raise_error()
    assert done.plan is not None and done.execution is not None
    launches = []
    compiled = compiled_launches(done.plan, question.problem, executor.device.arch)
    for (step, _), report in zip(compiled, done.execution.launches, strict=True):
        assert report.traffic is not None and report.shared is not None and report.instructions is not None
        used = report.resources
        threads = math.prod(step.block)
        resident, limited_by = residents(sm, threads, used, step.shared_bytes)
        launches.append(
            LaunchProfile(
                report.kernel,
                math.prod(step.grid),
                threads,
                resident,
                limited_by,
                used,
                step.shared_bytes,
                report.traffic,
                report.shared,
                report.caches,
                report.instructions,
            )
        )
    return Profile(variant.name, question.problem, tuple(launches), done.verdict, done.reason)


def residents(
    sm: Multiprocessor, threads: int, used: Resources | None, dynamic_shared_bytes: int
) -> tuple[int, str | None]:
    """Resident blocks per multiprocessor, at least 1, and the resource that limits them."""
    if used is None:
        return max(1, residency(sm, threads, 1, dynamic_shared_bytes).blocks), None
    shared = used.shared_bytes + dynamic_shared_bytes
    found = residency(sm, threads, used.registers, shared).blocks
    # The limiting resource is the first of these of which less usage would allow more blocks.
    attempts: Sequence[tuple[str, Callable[[], int]]] = (
        ("registers", lambda: residency(sm, threads, 1, shared).blocks),
        ("shared memory", lambda: residency(sm, threads, used.registers, 0).blocks),
        ("registers and shared memory", lambda: residency(sm, threads, 1, 0).blocks),
    )
    for name, without in attempts:
        if without() > found:
            return max(1, found), name
    return max(1, found), "threads" if found * threads + threads > sm.threads else "blocks"
