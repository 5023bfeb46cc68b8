"""A section that plays the schedules of two variants next to each other, at the same rate of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.execution.schedule.replay import Holding, Replay, Step, Tile, Touch
from harness.text.page.markup import escape
from harness.text.page.resource import resource
from harness.text.page.section import Section

FIRST_CHOICE = ("fa1", "fa2")
"""Algorithms that are selected initially, if present."""
_SPEEDS = (("0.25", "a quarter"), ("1", "normal"), ("4", "fourfold"))
_EXPLAINED = (
    "Each side plays one variant, and both have moved the same number of bytes at any time. What a block reads in this "
    "step is blue, what it writes is striped in orange, and a green frame says what of the inputs is in its shared "
    "memory at the end of the step. The more often a tile was read or written before, the darker it is. Blocks of the "
    "first head are shown one after the other (a GPU runs them side by side), and then what all other blocks move "
    "together. Seen by the emulator; bytes are 32 times the sectors."
)


def replay_section(replays: Sequence[Replay]) -> Section:
    """A player of these variants, which initially shows FlashAttention-1 next to FlashAttention-2 if present."""
    title = "Schedule, step by step"
    if not replays:
        return Section("schedule", title, '<p class="note">No variant ran where its steps could be seen.</p>')
    left, right = _first_choice(replays)
    html = f"""<p class="note">{_EXPLAINED}</p>
<div id="replay" role="group" tabindex="0" aria-label="Player. Space plays and pauses, the arrows go one step.">
<div class="controls">
<label>Left <select id="replay-left">{_choices(replays, left)}</select></label>
<label>Right <select id="replay-right">{_choices(replays, right)}<option value=""{_selected(right == "")}>nobody\
</option></select></label>
<span class="replay-buttons"><button type="button" id="replay-first">Start</button>
<button type="button" id="replay-back">Step back</button>
<button type="button" id="replay-play">Play</button>
<button type="button" id="replay-forward">Step forward</button></span>
<label>Speed <select id="replay-speed">{"".join(_speed(*each) for each in _SPEEDS)}</select></label>
</div>
<label class="replay-position"><span>Bytes moved by each side</span>
<input type="range" id="replay-position" min="0" max="1000" value="0" step="any"></label>
<p class="replay-legend" aria-hidden="true"><span class="reads">read</span><span class="writes">written</span>\
<span class="held">in shared memory</span><span class="often">touched before</span></p>
<div class="replay-sides">{_side("left")}{_side("right")}</div>
</div>
{_totals(replays)}"""
    data = {"replay": {replay.variant: replay_data(replay) for replay in replays}}
    return Section("schedule", title, html, data, resource("replay.js"), resource("replay.css"))


def _first_choice(replays: Sequence[Replay]) -> tuple[str, str]:
    """Names of the two initial variants; the second is empty if there is only one."""
    by_algorithm = {replay.algorithm: replay.variant for replay in reversed(replays)}
    if all(algorithm in by_algorithm for algorithm in FIRST_CHOICE):
        left, right = (by_algorithm[algorithm] for algorithm in FIRST_CHOICE)
        return left, right
    names = [replay.variant for replay in replays]
    return names[0], names[1] if len(names) > 1 else ""


def _selected(is_so: bool) -> str:
    return " selected" if is_so else ""


def _choices(replays: Iterable[Replay], chosen: str) -> str:
    names = (escape(replay.variant) for replay in replays)
    return "".join(f'<option value="{name}"{_selected(name == escape(chosen))}>{name}</option>' for name in names)


def _speed(value: str, text: str) -> str:
    return f'<option value="{value}"{_selected(value == "1")}>{text}</option>'


def _side(name: str) -> str:
    return (
        f'<section class="replay-side" id="replay-{name}-side" aria-label="{name} variant">'
        f'<h3></h3><p class="replay-total"></p><div class="replay-bar" aria-hidden="true"><span></span></div>'
        '<canvas role="img"></canvas><p class="replay-step"></p></section>'
    )


def _totals(replays: Iterable[Replay]) -> str:
    """The final totals, for readers who do not use the player."""
    rows = "".join(
        f'<tr><th scope="row">{escape(replay.variant)}</th>'
        f'<td class="wrap">{escape(", ".join(_launch_text(replay, number) for number in range(len(replay.launches))))}'
        f'</td><td class="number">{len(replay.steps):,}</td><td class="number">{replay.read_bytes:,}</td>'
        f'<td class="number">{replay.write_bytes:,}</td></tr>'
        for replay in replays
    )
    return (
        '<details><summary><b>What the player ends at</b> <span class="muted">bytes at the sectors level</span>'
        '</summary><div class="scroll"><table><thead><tr><th>variant</th><th>launches</th><th class="number">steps</th>'
        '<th class="number">read bytes</th><th class="number">written bytes</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def _launch_text(replay: Replay, number: int) -> str:
    launch = replay.launches[number]
    return f"{launch.kernel} ({launch.shown} of {launch.blocks} blocks shown)"


def replay_data(replay: Replay) -> dict[str, Any]:
    """The replay as compact JSON; 0 stands for a holding that equals the previous step's."""
    held: Any = None
    steps = []
    for step in replay.steps:
        holds = [_holding(each) for each in step.held]
        steps.append([*_head(step), 0 if holds == held else holds])
        held = holds
    return {
        "matrices": [[m.name, m.role, m.rows, m.columns, m.slices] for m in replay.matrices],
        "launches": [[launch.kernel, launch.blocks, launch.shown] for launch in replay.launches],
        "problem": replay.problem,
        "steps": steps,
    }


def _head(step: Step) -> list[Any]:
    block = -1 if step.block is None else step.block
    return [step.launch, block, [_touch(each) for each in step.reads], [_touch(each) for each in step.writes]]


def _touch(touch: Touch) -> list[int]:
    return [touch.matrix, touch.bytes, *_numbers(touch.tiles)]


def _holding(holding: Holding) -> list[int]:
    return [holding.matrix, *_numbers(holding.tiles)]


def _numbers(tiles: Iterable[Tile]) -> list[int]:
    return [n for t in tiles for n in (t.first_row, t.end_row, t.first_column, t.end_column)]
