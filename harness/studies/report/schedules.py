"""Records replays for a page: the accesses of each variant's blocks, if the emulator can record them within seconds."""

from __future__ import annotations

from harness.execution.attempt import Attempt
from harness.execution.comparison import LARGEST_COUNTED_FLOPS
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import PASS
from harness.execution.protocol import Executor
from harness.execution.schedule.events import Observer
from harness.execution.schedule.replay import Replay
from harness.execution.schedule.replay_recording import replay_of
from harness.support.errors import SandboxError


def replay_or_none(done: Attempt, question: Question, executor: Executor | None) -> Replay | None:
    """Run a correct variant again and record a replay; None if no executor can record one, or it would take long."""
    if not isinstance(executor, Observer) or done.verdict != PASS or done.plan is None:
        return None
    if question.problem.flops > LARGEST_COUNTED_FLOPS:
        return None
    try:
        return replay_of(done.variant, question.problem, executor, question.inputs, done.plan)
    except SandboxError:
        return None  # errors of a second run are reported by the comparison
