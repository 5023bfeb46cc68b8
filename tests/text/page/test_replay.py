"""The player of schedules: its data say what the replay says, and in a browser it ends at the counted bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from browser import browser, open_page

from harness.execution.schedule.replay import (
    INPUT,
    OUTPUT,
    SCRATCH,
    Holding,
    Matrix,
    Replay,
    ReplayLaunch,
    Step,
    Tile,
    Touch,
)
from harness.text.page.replay import replay_data, replay_section

Q, O, TAKEN = 0, 1, 2
WHOLE, TOP = (Tile(0, 64, 0, 32),), (Tile(0, 32, 0, 32),)


def replay(variant: str, algorithm: str = "fa2", rounds: int = 3) -> Replay:
    """Each round reads Q and writes half of O; then comes what other blocks do."""
    steps = []
    for number in range(rounds):
        steps.append(Step(0, number, 10, (Touch(Q, WHOLE, 8192),), (), (Holding(Q, WHOLE),)))
        steps.append(Step(0, number, 20, (Touch(TAKEN, (), 32),), (Touch(O, TOP, 4096), Touch(TAKEN, (), 32)), ()))
    steps.append(Step(0, None, 0, (Touch(Q, (), 64000),), (Touch(O, (), 32000),), ()))
    taken = Matrix("variable taken", SCRATCH, 0, 1, 1, 1)
    matrices = (Matrix("Q", INPUT, 64, 32, 4, 2), Matrix("O", OUTPUT, 64, 32, 4, 2), taken)
    launches = (ReplayLaunch("<kernel>", (2 * rounds, 1, 1), 128, 1024, rounds),)
    return Replay(variant, algorithm, "a problem", "emulated", matrices, launches, tuple(steps))


def bytes_of(touches: list[list[int]]) -> int:
    return sum(touch[1] for touch in touches)


def test_its_data_add_up_to_the_total() -> None:
    shown = replay("v")
    data = json.loads(json.dumps(replay_data(shown)))
    assert sum(bytes_of(step[2]) for step in data["steps"]) == shown.read_bytes == 3 * (8192 + 32) + 64000
    assert sum(bytes_of(step[3]) for step in data["steps"]) == shown.write_bytes == 3 * (4096 + 32) + 32000
    assert data["matrices"][0] == ["Q", "input", 64, 32, 2]
    assert data["steps"][0][:4] == [0, 0, [[Q, 8192, 0, 64, 0, 32]], []]
    assert data["steps"][-1][1] == -1


def test_what_is_held_is_said_where_it_changes() -> None:
    data = replay_data(replay("v", rounds=1))
    assert [step[4] for step in data["steps"]] == [[[Q, 0, 64, 0, 32]], [], 0]


def test_flash_attention_1_beside_2_where_both_are_there() -> None:
    section = replay_section([replay("x", "x"), replay("b", "fa2"), replay("a", "fa1"), replay("a2", "fa1")])
    left, right = section.html.split('id="replay-right"')
    assert '<option value="a" selected>' in left and '<option value="b" selected>' in right
    alone = replay_section([replay("x", "x")])
    assert '<option value="" selected>none' in alone.html
    assert sorted(section.data["replay"]) == ["a", "a2", "b", "x"]


def test_names_are_escaped_and_totals_stand_there_without_a_script() -> None:
    html = replay_section([replay("v<1>")]).html
    assert "v<1>" not in html and "v&lt;1&gt;" in html and "&lt;kernel&gt; (3 of 6 blocks shown)" in html
    assert "88,672" in html and "44,384" in html


def test_nothing_to_play() -> None:
    section = replay_section([])
    assert not section.data and not section.script and "<canvas" not in section.html


COLOURS = "--bg:#fff;--fg:#111;--muted:#555;--line:#ccc;--accent:#05c;--warm:#e50;--cool:#17c;--good:#172;--panel:#eee"


def page_of(*replays: Replay) -> str:
    section = replay_section(replays)
    data = "".join(
        f'<script type="application/json" id="{key}-data">{json.dumps(value)}</script>'
        for key, value in section.data.items()
    )
    style = f":root{{{COLOURS}}}[hidden]{{display:none!important}}{section.style}"
    return (
        f'<!DOCTYPE html><meta charset="utf-8"><style>{style}</style>'
        f"<body>{section.html}{data}<script>'use strict';(() => {{{section.script}}})();</script>"
    )


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def page(driver: Any, tmp_path: Path) -> Any:
    file = tmp_path / "page.html"
    file.write_text(page_of(replay("long", "fa1", rounds=6), replay("short", "fa2")), encoding="utf-8")
    open_page(driver, file)
    assert at(driver, "left")[0] == 6  # of 13 steps
    click(driver, "first")
    yield driver
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


def at(driver: Any, side: str) -> tuple[int, int, int]:
    """Step, bytes read and bytes written, as one side says."""
    said = driver.execute_script(f"return {{...document.getElementById('replay-{side}-side').dataset}}")
    return int(said["step"]), int(said["read"]), int(said["written"])


def press(driver: Any, key: str) -> None:
    driver.execute_script(
        "document.getElementById('replay').dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0]}))", key
    )


def click(driver: Any, name: str) -> None:
    driver.find_element("id", f"replay-{name}").click()


def test_both_sides_end_at_their_counted_bytes(page: Any) -> None:
    assert at(page, "left") == (-1, 0, 0)
    press(page, "End")
    for side, shown in (("left", replay("long", rounds=6)), ("right", replay("short"))):
        assert at(page, side) == (len(shown.steps) - 1, shown.read_bytes, shown.write_bytes)
    text = page.find_element("css selector", "#replay-right-side .replay-total").text
    assert text == "read 88,672 bytes, written 44,384 bytes, of 133,056 bytes in all"


def test_each_step_ends_at_the_sum_so_far(page: Any) -> None:
    page.execute_script("const r = document.getElementById('replay-right'); r.value = '';"
                        "r.dispatchEvent(new Event('change'))")  # fmt: skip
    shown = replay("long", rounds=6)
    reads = accumulate(step.read_bytes for step in shown.steps)
    writes = accumulate(step.write_bytes for step in shown.steps)
    for number, (read, written) in enumerate(zip(reads, writes)):
        click(page, "forward")
        assert at(page, "left") == (number, read, written)
    click(page, "back")
    assert at(page, "left")[0] == len(shown.steps) - 2
    click(page, "first")
    assert at(page, "left") == (-1, 0, 0)


def test_both_sides_have_moved_as_many_bytes(page: Any) -> None:
    for _ in range(5):
        press(page, "ArrowRight")
    (_, *left), (_, *right) = at(page, "left"), at(page, "right")
    assert sum(left) == sum(right) > 0
    press(page, "ArrowLeft")
    assert sum(at(page, "left")[1:]) < sum(left)


def test_it_plays_and_pauses(page: Any) -> None:
    page.execute_script("document.getElementById('replay-speed').value = '4'")
    press(page, " ")
    assert page.find_element("id", "replay-play").text == "Pause"
    page.execute_async_script("setTimeout(arguments[0], 500)")
    press(page, " ")
    assert page.find_element("id", "replay-play").text == "Play"
    stopped = at(page, "left")
    assert sum(stopped[1:]) > 0
    page.execute_async_script("setTimeout(arguments[0], 100)")
    assert at(page, "left") == stopped


def test_the_picture_shows_the_step_and_says_it(page: Any) -> None:
    press(page, "ArrowRight")
    label = page.find_element("css selector", "#replay-left-side canvas").get_attribute("aria-label")
    assert label == ("long. Step 1 of 13: <kernel>, block 0 of 12. reads Q all rows. holds Q all rows")
    colours = """const canvas = document.querySelector('#replay-left-side canvas');
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    const found = new Set(); for (let i = 0; i < data.length; i += 4) found.add([...data.slice(i, i + 3)].join());
    return [...found];"""
    assert {"17,119,204", "17,119,34"} <= set(page.execute_script(colours))  # read, and held
    press(page, "ArrowRight")
    while at(page, "left")[0] < 1:
        press(page, "ArrowRight")
    assert "238,85,0" in page.execute_script(colours)  # written


def test_it_fits_a_narrow_window(page: Any) -> None:
    size = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.execute_async_script("setTimeout(arguments[0], 200)")
    assert page.execute_script("return document.documentElement.scrollWidth") <= 400
    left, right = (page.find_element("id", f"replay-{side}-side").rect for side in ("left", "right"))
    assert right["y"] > left["y"] + left["height"] - 1
