"""Describes a sanitizer's findings, those of one cause together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.model.finding import OUTPUT_NOT_WRITTEN, Finding, Place, findings_by_cause
from harness.support.numbers import counted
from harness.support.source_text import short_name

MOST_SHOWN = 5
"""Maximum findings per variant in text for people, and of places per finding."""


def findings_in_words(findings: Sequence[Finding], known: str | None, most: int | None = MOST_SHOWN) -> Iterator[str]:
    """Yield a text per cause, at most that many, except findings whose message ends `known`, a verdict's reason."""
    causes = findings_by_cause(findings)
    texts = []
    for first, *others in causes:
        text = _with_places(finding_text(first), others)
        if others or known is None or not known.endswith(first.message):
            texts.append(text)
    yield from texts[:most]
    if most is not None and len(texts) > most:
        yield f"and {counted(len(texts) - most, 'more finding')}; --format json lists all"


def finding_text(finding: Finding) -> str:
    """The finding's kind, its count, and its details."""
    times = f" ({finding.count:,} times)" if finding.count > 1 and finding.kind != OUTPUT_NOT_WRITTEN else ""
    return f"{finding.kind}{times}: {finding.message}"


def _with_places(text: str, others: Sequence[Finding]) -> str:
    """The text, with the kinds and lines of further findings of its cause."""
    if not others:
        return text
    lines = list(dict.fromkeys(_lines(finding) for finding in others))
    more = f", and {counted(len(lines) - MOST_SHOWN, 'more place')}" if len(lines) > MOST_SHOWN else ""
    return f"{text}\n    From the same cause: {', '.join(lines[:MOST_SHOWN])}{more}"


def _lines(finding: Finding) -> str:
    places = [_line(place) for place in (finding.place, finding.other) if place is not None]
    return f"{finding.kind} at {' with '.join(places)}" if places else finding.kind


def _line(place: Place) -> str:
    return f"{short_name(place.file).rpartition('/')[2]}:{place.line}"
