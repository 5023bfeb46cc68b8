"""Draws histories: bytes, error and time over the date of storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from harness.studies.history.timeline import History, Line
from harness.support.errors import UsageError
from harness.support.memory_units import MIB
from harness.text.drawing import COLOURS, DASHES, MARKERS, label_ends, open_frame, plain_numbers, saved

LEFT, WIDTH, LETTER = 0.6, 3.5, 0.09
"""Widths in inches: of the axis labels, of the plot area, and of a letter of the names next to it."""
MOST_DRAWN = 12
"""Maximum number of histories that are distinguishable."""
_LEAST_DAYS = 1 / 24
"""Minimum width of a panel in days, since a single date has no scale."""
PANELS: tuple[tuple[str, Callable[[Line], float | None]], ...] = (
    ("MiB at the sectors level (as claimed where not counted)", lambda line: _mib(line)),
    ("error / budget", lambda line: line.figures.error_over_budget),
    ("milliseconds (median)", lambda line: None if line.figures.time is None else line.figures.time.median),
)


def require_few(histories: Sequence[History]) -> None:
    """Raise `UsageError` if there is nothing to draw, or more than is distinguishable."""
    if not histories:
        raise UsageError("--plot: there are no stored results to plot")
    if len(histories) > MOST_DRAWN:
        raise UsageError(
            f"--plot draws at most {MOST_DRAWN} histories, and there are {len(histories)}; select some by VARIANT, "
            "--study, --where or --since"
        )


def draw_histories(histories: Sequence[History], suffix: str) -> bytes:
    """Draw a panel for each known figure, with a line for each history and a point for each of its lines."""
    from matplotlib import dates
    from matplotlib.figure import Figure

    panels = [(name, height) for name, height in PANELS if any(height(line) for h in histories for line in h.lines)]
    if not panels:
        raise UsageError("--plot: the stored results have neither bytes nor errors nor times")
    labels = names_of(histories)
    panel = LEFT + WIDTH + LETTER * max(map(len, labels))
    figure = Figure(figsize=(panel * len(panels), 4.8))
    whole = panel * len(panels)
    for number, (name, height) in enumerate(panels):
        axes = figure.add_axes(((number * panel + LEFT) / whole, 0.16, WIDTH / whole, 0.68))
        open_frame(axes)
        ends: list[tuple[float, float, str, str]] = []
        for place, (history, label) in enumerate(zip(histories, labels)):
            colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
            known = [(line, value) for line in history.lines if (value := height(line)) is not None]
            points = [(float(dates.date2num(_moment(at))), value) for line, value in known for at in _ends(line)]
            if points:
                dashes = DASHES[place // len(COLOURS) % len(DASHES)]
                axes.plot(*zip(*points), dashes, color=colour, marker=marker, markersize=5, linewidth=1.5)
                ends.append((*points[-1], label, colour))
        if ends and axes.dataLim.width < _LEAST_DAYS:
            middle = (axes.dataLim.x0 + axes.dataLim.x1) / 2
            axes.set_xlim(middle - _LEAST_DAYS / 2, middle + _LEAST_DAYS / 2)
        locator = dates.AutoDateLocator(maxticks=6)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
        axes.set_ylim(0, 1.08 * axes.dataLim.y1)
        axes.yaxis.set_major_formatter(plain_numbers())
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.set_xlabel("kept at, UTC")
        axes.set_title(name, fontsize=10, loc="left")
        label_ends(axes, ends)
    settings = {history.setting for history in histories}
    if len(settings) == 1:
        figure.suptitle(*settings, x=LEFT / whole, ha="left", fontsize=11)
    return saved(figure, suffix)


def _mib(line: Line) -> float | None:
    total = line.figures.total_bytes
    total = line.figures.claimed_bytes if total is None else total
    return None if total is None else total / MIB


def _ends(line: Line) -> tuple[str, ...]:
    return (line.first_at,) if line.runs == 1 else (line.first_at, line.last_at)


def _moment(at: str) -> datetime:
    return datetime.fromisoformat(at.replace("Z", "+00:00"))


def _parts(history: History) -> list[str]:
    return (history.headline or history.study).split(", ")


def names_of(histories: Sequence[History]) -> list[str]:
    """The shortest names that distinguish all histories, with those fields of their problems that differ."""
    common = set.intersection(*(set(_parts(history)) for history in histories))
    ways: list[Callable[[History], Any]] = [
        lambda h: h.variant,
        lambda h: f"{h.variant}, {h.study}",
        lambda h: ", ".join((h.variant, *([h.asked_tile] if h.asked_tile else ()))),
        lambda h: ", ".join((h.variant, *(part for part in _parts(h) if part not in common))),
        lambda h: f"{h.variant}, {h.study}, {h.headline}",
    ]
    for way in ways:
        names = [way(history) for history in histories]
        if len(set(names)) == len(names):
            return names
    return [f"{history.variant}, {number}" for number, history in enumerate(histories, 1)]
