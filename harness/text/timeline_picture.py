"""Draws the first block of each launch of a timeline: a row per warp, with its waits, loads and copies in flight."""

from __future__ import annotations

from collections.abc import Iterator

from harness.execution.schedule.events import COPY_KINDS, WAITS, BlockEvents
from harness.execution.schedule.timeline import Timeline, TimelineLaunch
from harness.text.schedule_picture import LABEL_WIDTH, MARGIN, STYLE, WIDTH, svg

TOP, ROW_HEIGHT, GAP, FOOT = 44, 16, 6, 26
NARROWEST = 0.4
"""Smallest width of a rectangle."""
MOST_WARPS = 16
RUNS, LOADS, COPIES = "#d9d9d9", "#3b6fb6", "#e07b27"
WAIT_COLOURS = ("#b33a3a", "#8e5aa8", "#c7a21b", "#4f9d69")
"""Colours of the kinds of wait, in the order of `WAITS`."""


def timeline_svg(timeline: Timeline) -> str:
    """An SVG of the first block of each launch, against the instructions that its warps have executed."""
    parts, top = [_legend()], float(TOP)
    for launch in timeline.launches:
        events = launch.blocks[0].events
        if events is not None:
            parts.append(f'<text x="{LABEL_WIDTH}" y="{top - 4:.1f}" style="{STYLE}">{_title(launch)}</text>')
            rows = list(_rows(events, top))
            parts += rows
            top += ROW_HEIGHT * len(rows) + GAP + FOOT
    return svg(parts, top)


def _title(launch: TimelineLaunch) -> str:
    events = launch.blocks[0].events
    assert events is not None
    return f"{launch.launch.kernel}, block 0 of {launch.launch.blocks}: {events.end:,} instructions"


def _rows(events: BlockEvents, top: float) -> Iterator[str]:
    scale = (WIDTH - LABEL_WIDTH - MARGIN) / max(1, events.end)
    for warp, end in enumerate(events.ends.tolist()[:MOST_WARPS]):
        y = top + ROW_HEIGHT * warp
        label = f'x="{LABEL_WIDTH - 8}" y="{y + 11:.1f}" text-anchor="end" style="{STYLE}"'
        parts = [f"<text {label}>warp {warp}</text>", _rectangle(0, end, y + 2, ROW_HEIGHT - 4, scale, RUNS)]
        own = events.accesses[events.accesses["warp"] == warp]
        times = sorted(set(own["time"].tolist()))
        if times:
            ticks = "".join(f"M{LABEL_WIDTH + scale * time:.1f} {y + 2:.1f}v{ROW_HEIGHT / 2 - 2:.1f}" for time in times)
            parts.append(f'<path stroke="{LOADS}" stroke-width="0.6" d="{ticks}"/>')
        for wait in events.waits[events.waits["warp"] == warp]:
            until = events.end if wait["end"] < 0 else int(wait["end"])
            colour = WAIT_COLOURS[int(wait["kind"])]
            parts.append(_rectangle(int(wait["begin"]), until, y + 2, ROW_HEIGHT - 4, scale, colour))
        for copy in events.copies[events.copies["warp"] == warp]:
            landed = events.end if copy["landed"] < 0 else int(copy["landed"])
            parts.append(_rectangle(int(copy["issued"]), landed, y + ROW_HEIGHT - 5, 3, scale, COPIES))
        yield "\n".join(parts)


def _rectangle(begin: int, end: int, y: float, height: float, scale: float, colour: str) -> str:
    width = max(NARROWEST, scale * (end - begin))
    return (
        f'<rect x="{LABEL_WIDTH + scale * begin:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{colour}"/>'
    )


def _legend() -> str:
    waits = zip(WAIT_COLOURS, (f"waits: {kind.removesuffix(' wait')}" for kind in WAITS))
    entries = [(RUNS, "runs"), (LOADS, "accesses memory"), (COPIES, f"{' or '.join(COPY_KINDS)} in flight"), *waits]
    parts, x = [], 8.0
    for colour, text in entries:
        parts.append(f'<rect x="{x:.0f}" y="8" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 13:.0f}" y="17" style="{STYLE}; font-size: 10px">{text}</text>')
        x += 24 + 5.2 * len(text)
    return "\n".join(parts)
