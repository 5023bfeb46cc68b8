"""Draws a replay as one picture: the rows of each buffer upwards, the bytes moved so far from left to right."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from harness.execution.schedule.replay import Holding, Matrix, Replay, Step, Touch

WIDTH, LABEL_WIDTH, MARGIN = 800, 70, 12
TOP, STRIP_HEIGHT, GAP, FOOT = 44, 56, 8, 26
SMALLEST_STRIP = 16
CHARACTER_WIDTH = 7
THINNEST = 1.2
"""Smallest height of what is drawn, so that single rows can be seen."""
NARROWEST_BLOCK = 12
"""Blocks of a launch that are narrower on average are not divided by lines."""
READ, WRITTEN, HELD = "#3b6fb6", "#e07b27", "#bfe3c3"
STYLE = "font: 12px sans-serif; fill: #222"


def schedule_svg(replay: Replay) -> str:
    """An SVG of the replay's matrices, without vectors such as l and m.

    A step is as wide as its bytes; what it reads is drawn to the left of what it writes. Light green rows are in the
    shared memory of the block at the end of the step.
    """
    matrices = {number: each for number, each in enumerate(replay.matrices) if min(each.rows, each.columns) > 1}
    most_rows = max(matrix.rows for matrix in matrices.values())
    total = max(1, replay.read_bytes + replay.write_bytes)
    scale = (WIDTH - LABEL_WIDTH - MARGIN) / total
    begins = [LABEL_WIDTH + scale * sum_ for sum_ in accumulate((_bytes(step) for step in replay.steps), initial=0)]
    parts, top = [], float(TOP)
    for number, matrix in matrices.items():
        height = max(SMALLEST_STRIP, STRIP_HEIGHT * matrix.rows / most_rows)
        strip = _Strip(number, matrix, top, height, scale)
        parts.append(strip.svg(replay.steps, begins))
        top += height + GAP
    has_held = any(tile for step in replay.steps for holding in step.held for tile in holding.tiles)
    parts += [_divisions(replay, begins, top - GAP), _legend(has_held), _axis(total, top)]
    return svg(parts, top + FOOT)


def svg(parts: Iterable[str], height: float) -> str:
    """The elements as a file of this height in pixels, on white."""
    size = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
    background, body = '<rect width="100%" height="100%" fill="#fff"/>', "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{background}\n{body}\n</svg>\n'


def _bytes(step: Step) -> int:
    return step.read_bytes + step.write_bytes


class _Strip:
    """The picture of one matrix."""

    def __init__(self, number: int, matrix: Matrix, top: float, height: float, scale: float) -> None:
        self.number, self.matrix, self.top, self.height, self.scale = number, matrix, top, height, scale

    def svg(self, steps: Iterable[Step], begins: list[float]) -> str:
        """A frame, and all rectangles of one colour in one path."""
        paths: dict[str, list[str]] = {HELD: [], READ: [], WRITTEN: []}
        for step, begin in zip(steps, begins):
            read_width, write_width = self.scale * step.read_bytes, self.scale * step.write_bytes
            paths[HELD] += self._rectangles(step.held, begin, read_width + write_width)
            paths[READ] += self._rectangles(step.reads, begin, read_width)
            paths[WRITTEN] += self._rectangles(step.writes, begin + read_width, write_width)
        right, middle = WIDTH - MARGIN, self.top + self.height / 2
        frame = f'x="{LABEL_WIDTH}" y="{self.top:.1f}" width="{right - LABEL_WIDTH}" height="{self.height:.1f}"'
        label = f'x="{LABEL_WIDTH - 8}" y="{middle + 4:.1f}" text-anchor="end" style="{STYLE}"'
        drawn = [f'<path fill="{colour}" d="{"".join(path)}"/>' for colour, path in paths.items() if path]
        return "\n".join([f'<rect {frame} fill="#f1f1f1"/>', *drawn, f"<text {label}>{self.matrix.name}</text>"])

    def _rectangles(self, places: Iterable[Touch | Holding], begin: float, width: float) -> list[str]:
        tiles = (tile for each in places if each.matrix == self.number for tile in each.tiles)
        rows = sorted({(tile.first_row, tile.end_row) for tile in tiles})
        return [self._rectangle(first_row, end_row, begin, width) for first_row, end_row in rows]

    def _rectangle(self, first_row: int, end_row: int, begin: float, width: float) -> str:
        per_row = self.height / self.matrix.rows
        height = max(THINNEST, (end_row - first_row) * per_row)
        top = min(self.top + first_row * per_row, self.top + self.height - height)
        return f"M{begin:.1f} {top:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"


def _divisions(replay: Replay, begins: list[float], bottom: float) -> str:
    """A line where a launch begins, with the kernel's name if it fits, and a dashed one where a wide block begins.

    The name of a narrow launch reaches to the left over its line, which then begins below the name.
    """
    steps = replay.steps
    firsts = [bisect_left(steps, number, key=lambda step: step.launch) for number in range(len(replay.launches))]
    parts, free = [], float(LABEL_WIDTH)
    for launch, first, end in zip(replay.launches, firsts, [*firsts[1:], len(steps)]):
        left, right = begins[first], begins[end]
        text_width = CHARACTER_WIDTH * len(launch.kernel)
        begin = left + 3 if text_width <= right - left else right - text_width
        has_name = begin >= free
        top = TOP if has_name and begin < left else TOP - 16
        parts.append(f'<path stroke="#222" d="M{left:.1f} {top}V{bottom:.1f}"/>')
        if has_name:
            place = f'x="{begin:.1f}"' if begin > left else f'x="{right - 2:.1f}" text-anchor="end"'
            parts.append(f'<text {place} y="{TOP - 6}" style="{STYLE}">{launch.kernel}</text>')
        free = max(left, begin + text_width if has_name else free)
        if right - left >= NARROWEST_BLOCK * launch.blocks:
            dividing = [begins[n] for n in range(first + 1, end) if steps[n].block != steps[n - 1].block]
            parts += [f'<path stroke="#222" stroke-dasharray="2 2" d="M{x:.1f} {TOP}V{bottom:.1f}"/>' for x in dividing]
    return "\n".join(parts)


def _legend(has_held: bool) -> str:
    parts, x = [], LABEL_WIDTH
    for colour, text in ((READ, "read"), (WRITTEN, "written"), *[(HELD, "in shared memory")] * has_held):
        parts.append(f'<rect x="{x}" y="8" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="18" style="{STYLE}">{text}</text>')
        x += 40 + CHARACTER_WIDTH * len(text)
    return "\n".join(parts)


def _axis(total: int, top: float) -> str:
    shared, end = f'y="{top + 10:.1f}" style="{STYLE}"', f"{total / 2**20:.2f} MiB read and written"
    return (
        f'<text x="{LABEL_WIDTH}" {shared}>0</text>\n<text x="{WIDTH - MARGIN}" text-anchor="end" {shared}>{end}</text>'
    )
