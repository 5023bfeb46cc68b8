"""Times variants in a worker process that has a GPU to itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.execution.cluster.worker_side import Unfit, retire
from harness.execution.timings import BenchResult, Effort
from harness.gpu.contenders import bench_on_gpu
from harness.gpu.context import GpuContext
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.errors import SandboxError


@dataclass(frozen=True)
class Timing:
    """What is timed, and how long."""

    problem: BaseProblem
    regime: str
    seed: int
    effort: Effort
    libraries: bool
    """Whether third-party kernels are timed as well."""
    only_cold: frozenset[str] = frozenset()
    """Names of variants that are not timed back to back."""


def time_on_gpu(variants: Sequence[Variant], timing: Timing) -> BenchResult:
    """Run `bench_on_gpu`. Raises `Unfit` if the GPU is lost; a process whose context is broken ends afterwards."""
    try:
        result = bench_on_gpu(
            variants,
            timing.problem,
            regime=timing.regime,
            seed=timing.seed,
            effort=timing.effort,
            libraries=timing.libraries,
            step=lambda name: None,
            only_cold=timing.only_cold,
        )
        is_broken = _is_broken()
    except SandboxError as error:
        retire()
        raise Unfit(f"its GPU is lost: {error}") from error
    if is_broken:
        retire()
    return result


def _is_broken() -> bool:
    """Whether this process's context is unusable, as after a fault."""
    try:
        GpuContext().cupy.cuda.runtime.deviceSynchronize()
    except Exception:
        return True
    return False
