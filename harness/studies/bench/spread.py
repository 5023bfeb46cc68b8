"""Distributes a timing sweep over the GPUs of a cluster: one job per value of the field, with all contenders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from harness.execution.cluster.cluster_client import ClusterClient
from harness.execution.cluster.shipping import OriginLoad, variant_here
from harness.execution.planning.tiles import parse_tile, with_tile
from harness.execution.planning.tuned_tiles import with_tuned_tiles
from harness.execution.run_settings import RunSettings
from harness.execution.timings import BenchResult, BenchRow
from harness.gpu.context import GpuContext
from harness.gpu.spread import time_on_gpu
from harness.model.problem import BaseProblem
from harness.options.sweep import Value
from harness.studies.bench.sweep import BenchPoint
from harness.support.errors import SandboxError


@dataclass(frozen=True)
class PointTask:
    """All contenders at one value of the swept field."""

    token: str
    """The cluster client's token (`ClusterClient.token`)."""
    loads: tuple[OriginLoad, ...]
    tile: str | None
    """The value of --tile; None for the tuned tiles of the worker's machine, or else each variant's default."""
    problem: BaseProblem
    settings: RunSettings
    libraries: bool


def run_point(task: PointTask) -> BenchResult:
    """Time one point in a worker. Raises `Unfit` if the worker has no usable GPU."""
    variants = [variant_here(task.token, load) for load in task.loads]
    if task.tile is not None:
        wanted = parse_tile(task.tile)
        variants = [with_tile(variant, wanted) for variant in variants]
    else:
        variants = with_tuned_tiles(variants, task.problem, GpuContext().device)
    return time_on_gpu(variants, task.problem, task.settings, libraries=task.libraries)


def spread_points(
    cluster: ClusterClient,
    tasks: Mapping[Value, PointTask],
    known: Mapping[Value, BenchResult],
    done: Callable[[Value, BenchResult], None],
) -> list[BenchPoint]:
    """Return a point for each value, in order.

    Points in `known` are not run; `done` is called with each other one. A value that lost its GPUs has an error in each
    row. Raises `SandboxError` if all values did.
    """
    results, lost = dict(known), dict[Value, str]()
    longest_first = sorted(tasks.items(), key=lambda item: -item[1].problem.flops)
    left = {value: point for value, point in longest_first if value not in known}
    for value, found in cluster.map_unordered(run_point, left):
        if isinstance(found, Exception):
            lost[value] = str(found)
        else:
            results[value] = found
            done(value, found)
    if not results:
        raise SandboxError(next(iter(lost.values())))
    like = next(iter(results.values()))
    for value, reason in lost.items():
        rows = tuple(
            BenchRow(variant=load.name, kind="variant", verdict="error", reason=reason) for load in tasks[value].loads
        )
        results[value] = replace(like, problem=tasks[value].problem, rows=rows)
    return [BenchPoint(value, results[value]) for value in tasks]
