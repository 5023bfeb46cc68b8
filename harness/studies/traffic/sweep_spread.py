"""Distributes a sweep over the workers of a cluster, one point per job."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.emulator.executor import EmulatorExecutor
from harness.execution.cluster.cluster_client import ClusterClient
from harness.execution.cluster.shipping import OriginLoad, variant_here
from harness.execution.cluster.worker_side import state
from harness.execution.planning.tiles import with_tile
from harness.execution.run_settings import RunSettings
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.options.sweep import Sweep, Value
from harness.studies.traffic.sweep_point import SweepPoint
from harness.studies.traffic.sweep_run import Ask, Place, asked_once, blank_point, point_of


@dataclass(frozen=True)
class PointTask:
    """The parameters of one point."""

    token: str
    """`ClusterClient.token`."""
    settings: RunSettings
    load: OriginLoad
    tile: tuple[tuple[str, int], ...]
    value: Value
    problem: BaseProblem


@functools.lru_cache(maxsize=1)
def _cached_question(problem: BaseProblem, settings: RunSettings) -> Ask:
    return asked_once(problem, settings)


def run_point(task: PointTask) -> SweepPoint:
    """Compute a point in a worker. Failures of the variant are part of the point."""
    variant = variant_here(task.token, task.load)
    if task.tile:
        variant = with_tile(variant, dict(task.tile))
    executor = state(f"executor:{task.token}", lambda: EmulatorExecutor(task.settings))
    # A worker mostly receives consecutive points of the same problem, so the last question is cached.
    ask = _cached_question(task.problem, task.settings)
    return point_of(variant, task.value, task.problem, executor, task.settings.count, ask)


def spread_sweep(
    cluster: ClusterClient,
    settings: RunSettings,
    variants: Sequence[tuple[Variant, OriginLoad]],
    sweep: Sweep,
    problems: Sequence[BaseProblem],
    known: Mapping[Place, SweepPoint],
    done: Callable[[Place, SweepPoint], None],
) -> tuple[SweepPoint, ...]:
    """Return points in the order of `run_sweep`.

    Points in `known` are not run; `done` is called with each other one.
    """
    here = replace(settings, threads=1)  # a worker has one core
    points = dict(known)
    tasks = [
        (variant, PointTask(cluster.token, here, load, tuple(sweep.tile_at(value).items()), value, problem))
        for value, problem in zip(sweep.values, problems)
        for variant, load in variants
        if (variant.name, value) not in known
    ]
    tasks.sort(key=lambda each: -each[1].problem.flops)  # the longest first, so that the others fill the gaps
    for place, found in cluster.map_unordered(run_point, {place: each for place, (_, each) in enumerate(tasks)}):
        variant, point = tasks[place]
        if isinstance(found, Exception):
            found = replace(blank_point(variant, point.value, point.problem), reason=str(found), failed=True)
        points[variant.name, point.value] = found
        done((variant.name, point.value), found)
    return tuple(points[variant.name, value] for value in sweep.values for variant, _ in variants)
