"""A section that plays the schedules of two variants next to each other, at the same rate of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.execution.schedule.replay import Holding, Replay, Step, Tile, Touch
from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.page.templates import render

FIRST_CHOICE = ("fa1", "fa2")
"""Algorithms that are selected initially, if present."""


def replay_section(replays: Sequence[Replay]) -> Section:
    """A player of these variants, which initially shows FlashAttention-1 next to FlashAttention-2 if present."""
    title = "Schedule, step by step"
    if not replays:
        return Section("schedule", title, render("replay.html", replays=()))
    left, right = _first_choice(replays)
    html = render("replay.html", replays=replays, left=left, right=right)
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
