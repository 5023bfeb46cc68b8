"""The picture of a step, made from a run."""

from __future__ import annotations

import math
from dataclasses import replace

from harness.execution.run_settings import DEFAULT_SETTINGS, RunSettings
from harness.execution.schedule.replay_recording import MOST_BLOCKS, replay_of
from harness.execution.schedule.timeline import timeline_of
from harness.model.lesson import Lesson
from harness.model.operation import draw_inputs
from harness.studies.learn.figures import CountedRun
from harness.studies.learn.steps import cuda_variant
from harness.support.errors import PluginError
from harness.support.gpu_data_sheets import GPUS
from harness.text.bank_picture import bank_svg
from harness.text.schedule_picture import schedule_svg
from harness.text.timeline_picture import timeline_svg

MOST_EVENTS = 20_000
FEW_ROWS = 16
"""Rows and keys of the picture of a run with more blocks than a schedule shows."""
PICTURES = ("schedule", "timeline", "banks")


def draw(lesson: Lesson, counted: CountedRun, settings: RunSettings = DEFAULT_SETTINGS) -> str:
    """Return the step's picture as SVG. Raises `PluginError` for an unknown kind of picture."""
    from harness.emulator.executor import EmulatorExecutor

    if lesson.picture == "banks":
        return bank_svg(counted.shared)
    variant = cuda_variant(lesson)
    executor = EmulatorExecutor(replace(settings, arch=lesson.arch))
    if lesson.picture == "schedule" and all(math.prod(launch.grid) > MOST_BLOCKS for launch in counted.plan.launches):
        few = type(lesson.problem).from_fields(lesson.problem.to_fields() | {"q_len": FEW_ROWS, "kv_len": FEW_ROWS})
        return schedule_svg(replay_of(variant, few, executor, draw_inputs(few, lesson.regime, settings.seed)))
    inputs = draw_inputs(lesson.problem, lesson.regime, settings.seed)
    if lesson.picture == "schedule":
        return schedule_svg(replay_of(variant, lesson.problem, executor, inputs, counted.plan))
    if lesson.picture == "timeline":
        timeline = timeline_of(variant.name, lesson.problem, counted.plan, executor, inputs, GPUS["h200"], MOST_EVENTS)
        return timeline_svg(timeline)
    raise PluginError(f"step {lesson.number} has picture {lesson.picture!r}; pictures: {', '.join(PICTURES)}")
