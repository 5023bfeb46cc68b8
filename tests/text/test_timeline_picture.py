"""The picture of a block's warps: where they wait, and how long copies are in flight."""

from __future__ import annotations

import re

from harness.text.timeline_picture import COPIES, LABEL_WIDTH, MARGIN, RUNS, WAIT_COLOURS, WIDTH, timeline_svg
from tests.text.test_chrome_trace import launch, timeline

SCALE = (WIDTH - LABEL_WIDTH - MARGIN) / 100
"""Pixels for each of the 100 instructions of block 0."""


def spans(svg: str, colour: str, height: str) -> list[tuple[int, int]]:
    """Begin and end of rectangles of this colour, in instructions."""
    pattern = rf'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="{height}" fill="{colour}"/>'
    found = ((float(x) - LABEL_WIDTH, float(width)) for x, width in re.findall(pattern, svg))
    return [(round(x / SCALE), round((x + width) / SCALE)) for x, width in found]


def test_each_warp_has_its_waits_and_copies() -> None:
    svg = timeline_svg(timeline([launch()]))
    assert "k, block 0 of 4: 100 instructions" in svg
    assert spans(svg, RUNS, "12.0") == [(0, 100), (0, 99)]
    assert spans(svg, WAIT_COLOURS[0], "12.0") == [(10, 30), (30, 30)]
    assert spans(svg, COPIES, "3.0") == [(35, 50), (36, 100)], "a copy that nobody waits for lasts until the end"


def test_each_launch_has_a_block() -> None:
    svg = timeline_svg(timeline([launch(0), launch(1)]))
    assert svg.count("warp 0<") == svg.count("warp 1<") == 2
