"""Times variants in a worker process that has a GPU to itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from harness.execution.cluster.worker_side import Unfit, retire
from harness.execution.run_settings import RunSettings
from harness.execution.timings import BenchResult
from harness.gpu.contenders import bench_on_gpu
from harness.gpu.context import GpuContext
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.errors import SandboxError


def time_on_gpu(
    variants: Sequence[Variant],
    problem: BaseProblem,
    settings: RunSettings,
    *,
    libraries: bool,
    only_cold: Collection[str] = (),
) -> BenchResult:
    """Run `bench_on_gpu`. Raises `Unfit` if the GPU is lost; a process whose context is broken ends afterwards."""
    try:
        result = bench_on_gpu(
            variants, problem, settings, libraries=libraries, step=lambda name: None, only_cold=only_cold
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
