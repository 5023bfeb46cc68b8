"""What a right kernel's attempt looks like where its inputs may decide nothing."""

from __future__ import annotations

from harness.execution.attempt import Attempt
from harness.execution.judging.verdict import PASS


def require_right(done: Attempt) -> None:
    """Within what is expected, bytes as claimed, and nothing else wrong: a pass, but for inputs that decide nothing."""
    assert done.failure is None, done.failure
    assert done.accuracy is not None and done.accuracy.passed and not done.accuracy.suspicious, done.accuracy
    assert done.claim_holds, (done.counted, done.claim)
    assert done.verdict == PASS or (done.power is not None and not done.power.decides), done.reason
