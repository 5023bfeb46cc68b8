"""Groups stored rows into histories: one per variant, problem, study and device, with a line for each change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.execution.results.change import Figures, changed, time_interval

COMPARABLE = (
    "variant", "study", "operation", "problem", "regime", "seed", "asked_tile", "device",
)  # fmt: skip
"""Columns that are equal for all rows of one history."""
MEASURED = (
    "kept_at", "kernel_digest", "verdict", "read_bytes", "write_bytes", "claimed_bytes", "error_over_budget",
    "time_low_ms", "time_ms", "time_high_ms", "tile", "reason", "examples", "local_bytes", "headline",
)  # fmt: skip
COLUMNS = (*COMPARABLE, *MEASURED)
"""Columns from which histories are made, in the order that `histories` expects."""
_DRAWS_AT_RANDOM = "fuzz"
"""The study whose runs have different inputs every time, so that their seeds and errors do not describe the kernel."""

_TRIES_TILES = "tune"
"""The study whose runs on one problem use one tile each."""


@dataclass(frozen=True)
class Line:
    """Consecutive runs between which nothing changed beyond noise."""

    first_at: str
    """UTC time at which the first of them was stored."""
    last_at: str
    runs: int
    figures: Figures
    """Each figure, from the first run in which it is known."""
    tile: str | None
    reason: str | None
    """Why the verdict is not `pass`; None if it is."""
    examples: int | None
    """Total number of examples, for campaigns; else None."""


@dataclass(frozen=True)
class History:
    """The results of one variant on one problem, in one study, on one device."""

    variant: str
    study: str
    operation: str
    headline: str | None
    """The problem in words; None for campaigns."""
    regime: str | None
    seed: int | None
    asked_tile: str | None
    device: str | None
    lines: tuple[Line, ...]
    """Lines, oldest first."""

    @property
    def setting(self) -> str:
        """The study, the problem, the distribution of its inputs, the requested tile and the device, in words."""
        problem = self.operation if self.headline is None else self.headline
        if self.headline is not None and self.regime is not None:
            problem += f"; inputs {self.regime}, seed {self.seed}"
        if self.asked_tile is not None and self.study != _TRIES_TILES:
            problem += f"; tile {self.asked_tile}"
        return f"{self.study}: {problem}" + ("" if self.device is None else f"; {self.device}")


def histories(rows: Iterable[Sequence[Any]], each_run: bool = False) -> list[History]:
    """Group rows of `COLUMNS`, oldest first, into histories by variant. With `each_run`, each run has a line."""
    grouped: dict[tuple[Any, ...], list[Sequence[Any]]] = {}
    width = len(COMPARABLE)
    for row in rows:
        key = tuple(row[:width])
        if row[1] == _DRAWS_AT_RANDOM:
            key = (*key[:5], None, *key[6:])
        grouped.setdefault(key, []).append(row[width:])
    found = []
    for key, runs in grouped.items():
        variant, study, operation, _, regime, seed, asked_tile, device = key
        headline = runs[-1][-1]
        lines = tuple(_lines(runs, study == _DRAWS_AT_RANDOM, each_run))
        found.append(History(variant, study, operation, headline, regime, seed, asked_tile, device, lines))
    return sorted(found, key=lambda h: (h.variant, h.operation, h.study))


def newest(found: Iterable[History], most: int) -> tuple[list[History], int]:
    """Histories with only the newest lines, `most` in all, and the number of lines left out."""
    found = list(found)
    ends = sorted((line.last_at for history in found for line in history.lines), reverse=True)
    if len(ends) <= most:
        return found, 0
    left, kept = most, []
    for history in sorted(found, key=lambda h: h.lines[-1].last_at, reverse=True):
        # Lines of one history that are among the newest of all; ties are broken by position.
        lines = [line for line in history.lines if line.last_at >= ends[most - 1]][-left:] if left else []
        left -= len(lines)
        kept.append(replace(history, lines=tuple(lines)))
    chosen = sorted(kept, key=lambda h: (h.variant, h.operation, h.study))
    return [history for history in chosen if history.lines], len(ends) - most


def _lines(runs: Sequence[Sequence[Any]], random_inputs: bool, each_run: bool) -> list[Line]:
    lines: list[Line] = []
    last: tuple[Any, ...] | None = None
    for run in runs:
        at, digest, verdict, read, written, claimed, error, low, median, high, tile, reason, examples, local, _ = run
        same = (digest, verdict, read, written, local, claimed, error, low, median, high)
        if lines and not each_run and same == last:  # the common case, which needs no computation
            lines[-1] = _with_run(lines[-1], at, examples)
            continue
        last = same
        figures = Figures(
            kernel_digest=digest,
            verdict=verdict,
            read_bytes=read,
            write_bytes=written,
            local_bytes=local,
            claimed_bytes=claimed,
            error_over_budget=None if random_inputs else error,
            time=time_interval(low, median, high),
        )
        if not lines or each_run or changed(lines[-1].figures, figures):
            lines.append(Line(at, at, 1, figures, tile, reason, examples))
        else:
            last_line = replace(lines[-1], figures=_filled(lines[-1].figures, figures))
            lines[-1] = _with_run(last_line, at, examples)
    return lines


def _with_run(line: Line, at: str, examples: int | None) -> Line:
    """The line with one more run."""
    total = line.examples if examples is None else (line.examples or 0) + examples
    return replace(line, last_at=at, runs=line.runs + 1, examples=total)


def _filled(known: Figures, more: Figures) -> Figures:
    """Fill unknown figures from another run."""
    missing = {name: value for name, value in vars(more).items() if getattr(known, name) is None and value is not None}
    return replace(known, **missing) if missing else known
