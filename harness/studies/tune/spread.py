"""A tuning spread over the workers of a crew: tiles in groups, and on GPUs a final of the best of each group.

Bytes are the same wherever they are counted. Times of two GPUs are not, however alike these are: so each GPU times a
group of its own, in turns as ever, and who is best in its group meets the best of the others on one GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.emulator.executor import EmulatorExecutor
from harness.execution.cluster.crew import Crew
from harness.execution.cluster.shipping import OriginLoad, variant_here
from harness.execution.comparison import compare, lost_row
from harness.execution.outcome import Row
from harness.execution.timings import BenchResult, BenchRow, Effort
from harness.execution.verdict import ERROR
from harness.gpu.spread import Timing, time_on_gpu
from harness.model.problem import BaseProblem
from harness.studies.tune.tile_contenders import tile_contenders
from harness.support.errors import SandboxError
from harness.support.intervals import Interval, ranks

GROUPS_PER_WORKER = 2
"""Of tiles whose bytes are counted: some take longer than others."""


@dataclass(frozen=True)
class Counting:
    """Tiles of one variant to count the bytes of."""

    token: str
    """`Crew.token`."""
    load: OriginLoad
    names: tuple[str, ...]
    """Of `tile_contenders`."""
    problem: BaseProblem
    regime: str
    seed: int
    arch: str
    step_limit: int


def count_tiles(asked: Counting) -> list[Row]:
    """In a worker: a row for each, not ranked."""
    contenders = tile_contenders(variant_here(asked.token, asked.load), asked.problem)
    variants = [contenders[name][1] for name in asked.names]
    executor = EmulatorExecutor(asked.arch, asked.step_limit, threads=1, seed=asked.seed)
    return list(compare(variants, asked.problem, executor, regime=asked.regime, seed=asked.seed).rows)


def spread_counting(
    crew: Crew, asked: Counting, known: Mapping[str, Row], done: Callable[[str, Row], None]
) -> dict[str, Row]:
    """Rows by name, of all that are asked; those of `known` are not run, `done` is told each other one."""
    rows = dict(known)
    left = [name for name in asked.names if name not in known]
    groups = _dealt(left, GROUPS_PER_WORKER * max(1, crew.size))
    for place, found in crew.spread(count_tiles, [replace(asked, names=tuple(group)) for group in groups]):
        if isinstance(found, Exception):
            found = [lost_row(name, str(found), asked.problem) for name in groups[place]]
        for row in found:
            rows[row.variant] = row
            if row.verdict != ERROR:
                done(row.variant, row)
    return rows


@dataclass(frozen=True)
class Heat:
    """Tiles of one variant to time in turns on one GPU."""

    token: str
    load: OriginLoad
    names: tuple[str, ...]
    problem: BaseProblem
    regime: str
    seed: int
    effort: Effort


def time_tiles(asked: Heat) -> BenchResult:
    """In a worker. Raises `Unfit` where it has no usable GPU."""
    contenders = tile_contenders(variant_here(asked.token, asked.load), asked.problem)
    variants = [contenders[name][1] for name in asked.names]
    return time_on_gpu(variants, Timing(asked.problem, asked.regime, asked.seed, asked.effort, libraries=False))


def spread_timing(
    crew: Crew,
    asked: Heat,
    known: Callable[[tuple[str, ...]], BenchResult | None],
    done: Callable[[tuple[str, ...], BenchResult], None],
) -> BenchResult:
    """Heats, one for each GPU, and a final; the final's rows are before those that did not get there.

    `known` heats are not run, `done` is told each other one. Raises `SandboxError` where no heat came to its end.
    """
    groups = [tuple(group) for group in _dealt(asked.names, max(1, crew.size))]
    heats: dict[tuple[str, ...], BenchResult] = {}
    lost: dict[str, str] = {}
    for names in groups:
        if (result := known(names)) is not None:
            heats[names] = result
    left = [names for names in groups if names not in heats]
    for place, found in crew.spread(time_tiles, [replace(asked, names=names) for names in left]):
        if isinstance(found, Exception):
            lost |= dict.fromkeys(left[place], str(found))
        else:
            heats[left[place]] = found
            done(left[place], found)
    if not heats:
        raise SandboxError(next(iter(lost.values())))
    if len(heats) == 1:
        ((_, final),) = heats.items()
        return replace(final, rows=(*final.rows, *_lost_rows(lost)))
    best = tuple(row.variant for names in groups if names in heats for row in heats[names].rows if row.rank == 1)
    final = next(heat for heat in heats.values())
    if len(best) > 1:
        final = known(best) or crew.wait(crew.begin(time_tiles, replace(asked, names=best)))
        done(best, final)
    finalists = {row.variant for row in final.rows}
    others = [row for heat in heats.values() for row in heat.rows if row.variant not in finalists]
    return replace(final, rows=(*final.rows, *_behind(others, len(final.rows)), *_lost_rows(lost)))


def _behind(rows: Sequence[BenchRow], before: int) -> list[BenchRow]:
    """Those that lost their heats, ranked after so many others by their own times."""
    intervals = {
        row.variant: Interval(row.time_low_ms, row.time_ms, row.time_high_ms)
        for row in rows
        if row.verdict == "pass" and row.time_ms is not None
        if row.time_low_ms is not None and row.time_high_ms is not None
    }
    told = ranks(intervals)
    ranked = [replace(row, rank=before + told[row.variant] if row.variant in told else None) for row in rows]
    return sorted(ranked, key=lambda row: (row.rank is None, row.rank or 0, row.time_ms or 0.0))


def _lost_rows(lost: Mapping[str, str]) -> list[BenchRow]:
    return [BenchRow(variant=name, kind="variant", verdict="error", reason=reason) for name, reason in lost.items()]


def _dealt(names: Sequence[str], groups: int) -> list[list[str]]:
    """In turns, so that each group has some of the small tiles and some of the large ones; none is empty."""
    return [list(group) for place in range(groups) if (group := names[place::groups])]
