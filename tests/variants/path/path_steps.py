"""The steps of the learning path, and their runs, which tests share."""

from __future__ import annotations

import functools

from harness.studies.learn.step_run import StepRun, run_step
from harness.studies.learn.steps import find_lessons

LESSONS = find_lessons()


@functools.cache
def run_of(number: str) -> StepRun:
    """The run of a step and of the one before."""
    return run_step(LESSONS[number], LESSONS, explain=False)
