"""A warning for reports on other topics that a variant's answer is wrong, shown before all figures."""

from __future__ import annotations

from textwrap import fill

from harness.execution.judging.verdict import ERROR, FAIL
from harness.text.report import NOTE_WIDTH


def wrong_answer(variant: str, verdict: str | None, reason: str | None) -> str | None:
    """The warning paragraph for a variant; None unless its verdict is `fail` or `error`."""
    if verdict not in (FAIL, ERROR):
        return None
    text = f"WRONG: {variant}: {verdict}: {' '.join((reason or '').split())}. The figures below are of a wrong kernel."
    return fill(text, NOTE_WIDTH, break_long_words=False, break_on_hyphens=False)
