"""What is said of a variant on a problem."""

from __future__ import annotations

PASS, UNDECIDED, FAIL, ERROR, UNSUPPORTED = "pass", "undecided", "fail", "error", "unsupported"
VERDICTS = (PASS, UNDECIDED, FAIL, ERROR, UNSUPPORTED)
"""Right; within its budget, but that proves nothing; a wrong answer, or not the bytes that it claims; did not plan,
compile or run; does not take this problem."""
