"""What is said of a variant on a problem."""

from __future__ import annotations

PASS, FAIL, ERROR, UNSUPPORTED = "pass", "fail", "error", "unsupported"
VERDICTS = (PASS, FAIL, ERROR, UNSUPPORTED)
"""Right; a wrong answer, or not the bytes that it claims; did not plan, compile or run; does not take this problem."""
