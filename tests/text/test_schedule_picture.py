"""The picture of a schedule: where its rectangles, lines and names are."""

from __future__ import annotations

import dataclasses
import re

import pytest

from harness.execution.schedule.replay import INPUT, OUTPUT, Holding, Matrix, Replay, ReplayLaunch, Step, Tile, Touch
from harness.text.schedule_picture import HELD, LABEL_WIDTH, MARGIN, READ, WIDTH, WRITTEN, schedule_svg

pytestmark = pytest.mark.compiles(False)

UPPER, LOWER = Tile(0, 8, 0, 4), Tile(8, 16, 0, 4)
MATRICES = (Matrix("Q", INPUT, 16, 4, 4, 1), Matrix("O", OUTPUT, 16, 4, 4, 1), Matrix("lse", OUTPUT, 16, 1, 4, 1))


def replay(*steps: Step, launches: tuple[tuple[str, int], ...] = (("attend", 2),)) -> Replay:
    launched = tuple(ReplayLaunch(kernel, (blocks, 1, 1), 32, 0, blocks) for kernel, blocks in launches)
    return Replay("name", "algorithm", "problem", "device", MATRICES, launched, steps)


def step(block: int, tile: Tile, launch: int = 0) -> Step:
    """Reads 96 bytes of Q, writes 32 of O, and holds what it read."""
    return Step(launch, block, 1, (Touch(0, (tile,), 96),), (Touch(1, (tile,), 32),), (Holding(0, (tile,)),))


def rectangles(svg: str, colour: str) -> list[list[float]]:
    """Left, top, width and height of each."""
    (path,) = re.findall(rf'<path fill="{colour}" d="(.*?)"/>', svg)
    return [[float(n) for n in each] for each in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h", path)]


def test_a_step_is_as_wide_as_its_bytes_and_reads_lie_before_writes() -> None:
    svg = schedule_svg(replay(step(0, UPPER), step(1, LOWER)))
    half = (WIDTH - LABEL_WIDTH - MARGIN) / 2
    (first, second), (first_write, _) = rectangles(svg, READ), rectangles(svg, WRITTEN)
    assert [first[0], second[0]] == pytest.approx([LABEL_WIDTH, LABEL_WIDTH + half], abs=0.1)
    assert [first[2], first_write[2]] == pytest.approx([0.75 * half, 0.25 * half], abs=0.1)
    assert first_write[0] == pytest.approx(first[0] + first[2], abs=0.1)
    assert rectangles(svg, HELD)[0][2] == pytest.approx(half, abs=0.1)


def test_rows_are_drawn_where_they_lie_and_single_ones_can_be_seen() -> None:
    upper, lower = rectangles(schedule_svg(replay(step(0, UPPER), step(1, LOWER))), READ)
    assert lower[1] == pytest.approx(upper[1] + upper[3], abs=0.1) and upper[3] == lower[3] > 1
    tall = Replay(
        *("",) * 4, (Matrix("Q", INPUT, 4096, 4, 4, 1),), (), (Step(0, 0, 1, (Touch(0, (UPPER,), 32),), (), ()),)
    )
    assert rectangles(schedule_svg(tall), READ)[0][3] > 1


def test_vectors_are_left_out() -> None:
    svg = schedule_svg(replay(step(0, UPPER)))
    assert ">Q<" in svg and ">O<" in svg and ">lse<" not in svg


def test_launches_have_names_where_there_is_room_and_blocks_lines() -> None:
    svg = schedule_svg(replay(step(0, UPPER), step(1, LOWER)))
    assert ">attend<" in svg and svg.count("stroke-dasharray") == 1
    many = [step(n, UPPER, launch=1) for n in range(100)]
    svg = schedule_svg(replay(step(0, UPPER), *many, launches=(("first", 1), ("second", 100))))
    assert ">first<" not in svg and ">second<" in svg and "stroke-dasharray" not in svg


def test_a_narrow_launch_has_its_name_above_the_one_before() -> None:
    wide = [step(n, UPPER, launch=n // 40) for n in range(80)]
    launches = (("first", 39), ("narrow_name", 1), ("third", 40))
    narrow = [dataclasses.replace(each, launch=1 if n == 39 else 2 * each.launch) for n, each in enumerate(wide)]
    svg = schedule_svg(replay(*narrow, launches=launches))
    lines = {float(left): int(top) for left, top in re.findall(r'stroke="#222" d="M([\d.]+) (\d+)V', svg)}
    (end,) = re.findall(r'x="([\d.]+)" text-anchor="end" y="\d+" style="[^"]*">narrow_name<', svg)
    first, begin, after = sorted(lines)
    assert begin < float(end) < after and ">third<" in svg
    assert lines[begin] > lines[first] == lines[after], "its line does not cross its name"


def test_the_legend_has_only_colours_that_are_drawn() -> None:
    held = step(0, UPPER)
    assert "in shared memory" in schedule_svg(replay(held))
    assert "in shared memory" not in schedule_svg(replay(dataclasses.replace(held, held=())))
