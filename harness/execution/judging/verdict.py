"""The possible verdicts on a variant and a problem."""

from __future__ import annotations

PASS, UNDECIDED, FAIL, ERROR, UNSUPPORTED = "pass", "undecided", "fail", "error", "unsupported"
VERDICTS = (PASS, UNDECIDED, FAIL, ERROR, UNSUPPORTED)
"""In order: right; within the budget, but that proves nothing; wrong answer, or other bytes than claimed; failed to
plan, compile or run; problem not supported."""
