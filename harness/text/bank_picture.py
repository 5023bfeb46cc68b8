"""Draws the wavefronts of shared memory by source line, and how many of them are bank conflicts."""

from __future__ import annotations

from collections.abc import Sequence

from harness.execution.traffic.counts import SharedTraffic, by_place
from harness.text.schedule_picture import MARGIN, STYLE, WIDTH, svg

LABEL_WIDTH, NUMBER_WIDTH = 130, 190
TOP, ROW_HEIGHT, FOOT = 34, 26, 8
IDEAL, EXTRA = "#3b6fb6", "#b33a3a"


def bank_svg(shared: Sequence[SharedTraffic]) -> str:
    """An SVG with a bar per source line that loads or stores shared memory, in the order of lines."""
    rows = sorted(by_place(shared), key=lambda row: (row.file, row.line, row.kind))
    most = max((row.wavefronts for row in rows), default=1)
    scale = (WIDTH - LABEL_WIDTH - NUMBER_WIDTH - MARGIN) / max(1, most)
    parts = [_legend(), *(_bar(row, TOP + ROW_HEIGHT * place, scale) for place, row in enumerate(rows))]
    if not rows:
        parts.append(f'<text x="{MARGIN}" y="{TOP + 12}" style="{STYLE}">no access to shared memory</text>')
    return svg(parts, TOP + ROW_HEIGHT * max(1, len(rows)) + FOOT)


def _bar(row: SharedTraffic, y: float, scale: float) -> str:
    ideal, extra = scale * row.ideal_wavefronts, scale * (row.wavefronts - row.ideal_wavefronts)
    ways = row.wavefronts / max(1, row.ideal_wavefronts)
    number = f"{row.wavefronts:,} wavefronts, {ways:.3g} x the fewest"
    end = LABEL_WIDTH + ideal + extra
    return "\n".join(
        (
            f'<text x="{LABEL_WIDTH - 8}" y="{y + 14}" text-anchor="end" style="{STYLE}">line {row.line}, '
            f"{row.kind}</text>",
            f'<rect x="{LABEL_WIDTH}" y="{y + 2}" width="{ideal:.1f}" height="16" fill="{IDEAL}"/>',
            f'<rect x="{LABEL_WIDTH + ideal:.1f}" y="{y + 2}" width="{extra:.1f}" height="16" fill="{EXTRA}"/>',
            f'<text x="{end + 6:.1f}" y="{y + 14}" style="{STYLE}">{number}</text>',
        )
    )


def _legend() -> str:
    parts = []
    for x, colour, text in ((LABEL_WIDTH, IDEAL, "fewest wavefronts"), (LABEL_WIDTH + 150, EXTRA, "bank conflicts")):
        parts.append(f'<rect x="{x}" y="8" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="18" style="{STYLE}">{text}</text>')
    return "\n".join(parts)
