"""The picture of bank conflicts: a bar per source line, whose red part is the conflicts."""

from __future__ import annotations

import re

from harness.execution.traffic.counts import SharedTraffic
from harness.text.bank_picture import EXTRA, IDEAL, bank_svg


def bars(svg: str, colour: str) -> list[float]:
    pattern = rf'<rect x="[\d.]+" y="\d+" width="([\d.]+)" height="16" fill="{colour}"'
    return [float(width) for width in re.findall(pattern, svg)]


def test_bars_are_as_long_as_passes_are_many() -> None:
    rows = [
        SharedTraffic("load", "kernel.cu", 7, 10, 1280, 320, 10),
        SharedTraffic("store", "kernel.cu", 3, 10, 1280, 10, 10),
    ]
    svg = bank_svg(rows)
    ideal, extra = bars(svg, IDEAL), bars(svg, EXTRA)
    assert svg.index("line 3, store") < svg.index("line 7, load")
    assert ideal[0] == ideal[1] > 0 and extra[0] == 0
    assert abs(extra[1] / ideal[1] - 31) < 0.2
    assert "320 wavefronts, 32 x the fewest" in svg


def test_a_kernel_without_shared_memory_is_named_so() -> None:
    assert "no access to shared memory" in bank_svg([])
