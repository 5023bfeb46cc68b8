"""Distributes tuning over the workers of a cluster: tiles in groups, with the default tile in each group on GPUs.

Counted bytes are the same on every machine. Times on two GPUs are not comparable, even of the same model. So each GPU
times a group of tiles in turns with the default tile, and times are scaled by the default's time on the same GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.emulator.executor import EmulatorExecutor
from harness.execution.cluster.cluster_client import ClusterClient
from harness.execution.cluster.shipping import OriginLoad, variant_here
from harness.execution.comparison import compare, lost_row
from harness.execution.judging.verdict import ERROR
from harness.execution.outcome import Row
from harness.execution.run_settings import RunSettings
from harness.execution.timings import BenchResult, BenchRow, in_order_of_merit
from harness.gpu.spread import time_on_gpu
from harness.model.problem import BaseProblem
from harness.studies.tune.tile_contenders import tile_contenders
from harness.support.errors import SandboxError
from harness.support.intervals import Interval, ranks

GROUPS_PER_WORKER = 2
"""Groups of tiles per worker for counting bytes, since some take longer than others."""


@dataclass(frozen=True)
class TileTask:
    """Tiles of one variant whose bytes are counted, or that are timed in turns on one GPU."""

    token: str
    """The cluster client's token (`ClusterClient.token`)."""
    load: OriginLoad
    names: tuple[str, ...]
    """Names in `tile_contenders`."""
    problem: BaseProblem
    settings: RunSettings
    compared_with: frozenset[str] = frozenset()
    """Those of `names` that are timed only as a reference."""


def count_tiles(task: TileTask) -> list[Row]:
    """Count the bytes of each tile in a worker. Rows have no rank."""
    contenders = tile_contenders(variant_here(task.token, task.load), task.problem)
    variants = [contenders[name][1] for name in task.names]
    executor = EmulatorExecutor(replace(task.settings, threads=1))
    return list(compare(variants, task.problem, executor, task.settings).rows)


def spread_counting(
    cluster: ClusterClient, task: TileTask, known: Mapping[str, Row], done: Callable[[str, Row], None]
) -> dict[str, Row]:
    """Rows of all requested tiles by name. Those in `known` are not run; `done` is called with each other one."""
    rows = dict(known)
    left = [name for name in task.names if name not in known]
    groups = _dealt(left, GROUPS_PER_WORKER * max(1, cluster.size))
    for group, found in cluster.map_unordered(count_tiles, {group: replace(task, names=group) for group in groups}):
        if isinstance(found, Exception):
            found = [lost_row(name, str(found), task.problem) for name in group]
        for row in found:
            rows[row.variant] = row
            if row.verdict != ERROR:
                done(row.variant, row)
    return rows


def time_tiles(task: TileTask) -> BenchResult:
    """Time tiles in a worker. Raises `Unfit` if it has no usable GPU."""
    contenders = tile_contenders(variant_here(task.token, task.load), task.problem)
    variants = [contenders[name][1] for name in task.names]
    return time_on_gpu(variants, task.problem, task.settings, libraries=False, only_cold=task.compared_with)


def spread_timing(
    cluster: ClusterClient,
    task: TileTask,
    known: Callable[[tuple[str, ...]], BenchResult | None],
    done: Callable[[tuple[str, ...], BenchResult], None],
) -> BenchResult:
    """Time one group of tiles per GPU, and return all rows as if one GPU had timed them (see `on_one_scale`).

    `task.names` begins with the default. Heats in `known` are not run; `done` is called with each other one. Raises
    `SandboxError` if no heat completed.
    """
    default = task.names[0]
    dealt = _dealt(task.names, max(1, cluster.size))
    groups = [group if default in group else (default, *group) for group in dealt]
    heats = {group: found for group in groups if (found := known(group)) is not None}
    lost: dict[str, str] = {}
    tasks = {group: _heat(task, group, only_compared=group != groups[0]) for group in groups if group not in heats}
    for group, found in cluster.map_unordered(time_tiles, tasks):
        if isinstance(found, Exception):
            lost |= dict.fromkeys(group, str(found))
        else:
            heats[group] = found
            done(group, found)
    if not heats:
        raise SandboxError(next(iter(lost.values())))
    joined = on_one_scale([heats[group] for group in groups if group in heats], default)
    timed = {row.variant for row in joined.rows}
    return replace(joined, rows=(*joined.rows, *_lost_rows({name: lost[name] for name in lost if name not in timed})))


def _heat(task: TileTask, names: tuple[str, ...], only_compared: bool) -> TileTask:
    return replace(task, names=names, compared_with=frozenset(names[:1]) if only_compared else frozenset())


def on_one_scale(heats: Sequence[BenchResult], default: str) -> BenchResult:
    """The rows of all heats, best first, scaled to the GPU of the first heat.

    A time t of another heat, in which the default took t_d, compared to T_d in the first, becomes t T_d / t_d. The
    relative half widths of the three intervals are independent, so their squares add up. If the default did not pass in
    one of the two heats, times are not scaled. Times of back-to-back runs are not scaled, since each GPU has its own
    clock.
    """
    first = heats[0]
    rows = {row.variant: row for row in first.rows}
    base = _interval(rows.get(default))
    for heat in heats[1:]:
        here = _interval(next((row for row in heat.rows if row.variant == default), None))
        for row in heat.rows:
            if row.variant not in rows:
                rows[row.variant] = row if base is None or here is None else _scaled(row, base, here)
    intervals = {name: interval for name, row in rows.items() if (interval := _interval(row)) is not None}
    rank_of = ranks(intervals)
    return replace(first, rows=in_order_of_merit([replace(row, rank=rank_of.get(name)) for name, row in rows.items()]))


def _interval(row: BenchRow | None) -> Interval | None:
    """The interval of a row's time; None unless it passed and has a time."""
    if row is None or row.verdict != "pass" or row.time_ms is None:
        return None
    assert row.time_low_ms is not None and row.time_high_ms is not None
    return Interval(row.time_low_ms, row.time_ms, row.time_high_ms)


def _scaled(row: BenchRow, base: Interval, here: Interval) -> BenchRow:
    interval = _interval(row)
    if interval is None:
        return row
    time_ms = interval.median * base.median / here.median
    below = math.hypot(*(1 - each.low / each.median for each in (interval, base)), here.high / here.median - 1)
    above = math.hypot(*(each.high / each.median - 1 for each in (interval, base)), 1 - here.low / here.median)
    return replace(row, time_ms=time_ms, time_low_ms=time_ms * (1 - below), time_high_ms=time_ms * (1 + above))


def _lost_rows(lost: Mapping[str, str]) -> list[BenchRow]:
    return [BenchRow(variant=name, kind="variant", verdict="error", reason=reason) for name, reason in lost.items()]


def _dealt(names: Sequence[str], groups: int) -> list[tuple[str, ...]]:
    """Deal names in turns, so that each group has small and large tiles. No group is empty."""
    return [tuple(group) for place in range(groups) if (group := names[place::groups])]
