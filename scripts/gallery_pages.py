#!/usr/bin/env python3
"""Run the kernels of the pages in docs/gallery/, and write their tables of counts and their pictures anew.

    .venv/bin/python scripts/gallery_pages.py            # all pages
    .venv/bin/python scripts/gallery_pages.py scan       # some

A test holds tables and pictures against what is counted. `scripts/shown_outputs.py` writes the outputs of the programs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import runpy
import sys
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from harness.device.result import LaunchResult  # noqa: E402
from harness.text.tables import table  # noqa: E402
from scripts.shown_outputs import blocks, folder_of_the_reader, shown_in  # noqa: E402

GALLERY = ROOT / "docs" / "gallery"
COUNTED = re.compile(r"(?<=<!-- counted -->\n).*?(?=<!-- end of counted -->)", re.DOTALL)
HEADERS = ("program", "bytes of global memory", "passes of shared memory", "bank conflicts", "warp instructions")
WIDTH, LABEL_WIDTH, NUMBER_WIDTH, ROW_HEIGHT, TOP = 800, 150, 150, 22, 34
GLOBAL, IDEAL, EXTRA = "#d9822b", "#3b6fb6", "#b33a3a"
STYLE = "font: 12px sans-serif; fill: #222"


def pages() -> list[Path]:
    """The pages of kernels."""
    return sorted(GALLERY.glob("*.md"))


def programs(page: Path) -> list[str]:
    """The programs whose output a page shows, in order, without `.py`."""
    commands = [one.command for block in blocks("console") if block.page == page for one in shown_in(block)]
    return [re.sub(r"^python (\w+)\.py$", r"\1", command) for command in commands]


def results_of(names: Iterable[str]) -> dict[str, LaunchResult]:
    """The counts of each program. Raises what a program raises, such as an answer that differs from NumPy's."""
    found = {}
    imported = set(sys.modules)
    with folder_of_the_reader() as folder:
        sys.path.insert(0, str(folder))
        try:
            for name in names:
                with contextlib.redirect_stdout(io.StringIO()):
                    found[name] = runpy.run_path(str(folder / f"{name}.py"), run_name="__main__")["result"]
        finally:
            sys.path.remove(str(folder))
            for module in set(sys.modules) - imported:
                if str(getattr(sys.modules[module], "__file__", "")).startswith(str(folder)):
                    del sys.modules[module]
    return found


def global_bytes(result: LaunchResult) -> int:
    """Bytes of global memory in sectors, read and written; atomics count once."""
    return sum(site.sector_bytes for site in result.traffic)


def passes(result: LaunchResult) -> tuple[int, int]:
    """Passes of shared memory: the fewest possible, and those beyond, which are bank conflicts."""
    ideal = sum(row.ideal_wavefronts for row in result.shared or ())
    return ideal, sum(row.wavefronts for row in result.shared or ()) - ideal


def counted_table(results: Mapping[str, LaunchResult]) -> str:
    """The sums over all lines, a row for each program, as Markdown."""
    rows = []
    for name, result in results.items():
        ideal, extra = passes(result)
        counts = (global_bytes(result), ideal + extra, extra, result.warp_instructions)
        rows.append([f"`{name}`", *(f"{count:,}" for count in counts)])
    return table(HEADERS, rows, [False] + [True] * 4, markdown=True)


def kernels_svg(results: Mapping[str, LaunchResult]) -> str:
    """An SVG with bars of the bytes of global memory and, below, of the passes of shared memory."""
    parts: list[str] = []
    bytes_ = {name: ((global_bytes(result), GLOBAL),) for name, result in results.items()}
    y = _panel(parts, 0, "bytes of global memory", bytes_)
    if any(sum(passes(result)) for result in results.values()):
        both = {name: ((passes(result)[0], IDEAL), (passes(result)[1], EXTRA)) for name, result in results.items()}
        y = _panel(parts, y, "passes of shared memory; red: bank conflicts", both)
    size = f'width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
    body = "\n".join(['<rect width="100%" height="100%" fill="#fff"/>', *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{body}\n</svg>\n'


def _panel(parts: list[str], top: int, title: str, bars: Mapping[str, tuple[tuple[int, str], ...]]) -> int:
    """Append a panel with one bar for each program, made of coloured pieces; returns its lower end."""
    most = max(sum(length for length, _ in pieces) for pieces in bars.values())
    scale = (WIDTH - LABEL_WIDTH - NUMBER_WIDTH) / max(1, most)
    parts.append(f'<text x="{LABEL_WIDTH}" y="{top + 22}" style="{STYLE}; font-weight: bold">{title}</text>')
    for row, (name, pieces) in enumerate(bars.items()):
        y, x = top + TOP + ROW_HEIGHT * row, float(LABEL_WIDTH)
        parts.append(f'<text x="{x - 8:.0f}" y="{y + 13}" text-anchor="end" style="{STYLE}">{escape(name)}</text>')
        for length, colour in pieces:
            parts.append(f'<rect x="{x:.1f}" y="{y + 2}" width="{scale * length:.1f}" height="15" fill="{colour}"/>')
            x += scale * length
        total = sum(length for length, _ in pieces)
        parts.append(f'<text x="{x + 6:.1f}" y="{y + 13}" style="{STYLE}">{total:,}</text>')
    return top + TOP + ROW_HEIGHT * len(bars) + 6


def write_page(page: Path) -> None:
    """Write the table and the picture of a page."""
    results = results_of(programs(page))
    page.write_text(COUNTED.sub(lambda _: f"\n{counted_table(results)}\n\n", page.read_text()))
    page.with_suffix(".svg").write_text(kernels_svg(results))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the tables and the pictures of the gallery's kernels anew.")
    parser.add_argument("pages", nargs="*", help="only these, without .md")
    wanted = parser.parse_args().pages
    for each in pages():
        if not wanted or each.stem in wanted:
            write_page(each)
