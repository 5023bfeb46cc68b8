"""Describes a sanitizer's findings, those of one cause together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from harness.model.finding import OUTPUT_NOT_WRITTEN, RACES, UNINITIALISED_READ, Finding, Place
from harness.support.source_text import short_name

MOST_SHOWN = 5
"""Maximum findings per variant in text for people, and of places per finding."""


def findings_by_cause(findings: Iterable[Finding]) -> list[tuple[Finding, ...]]:
    """Group the findings that one missing barrier would explain; each other finding is alone.

    These are races on the same memory of a kernel, and reads of that memory before it was written.
    """
    groups: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        ordered = finding.kind in (*RACES, UNINITIALISED_READ) and finding.target is not None
        groups.setdefault((finding.kernel, finding.target) if ordered else number, []).append(finding)
    found: list[tuple[Finding, ...]] = []
    for group in groups.values():
        has_race = any(finding.kind in RACES for finding in group)
        # A race says more than the reads that it leaves without a value.
        found += [tuple(sorted(group, key=lambda f: f.kind not in RACES))] if has_race else [(each,) for each in group]
    return found


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
        yield f"and {len(texts) - most} more findings; --format json lists all"


def finding_text(finding: Finding) -> str:
    """The finding's kind, its count, and its details."""
    times = f" ({finding.count:,} times)" if finding.count > 1 and finding.kind != OUTPUT_NOT_WRITTEN else ""
    return f"{finding.kind}{times}: {finding.message}"


def _with_places(text: str, others: Sequence[Finding]) -> str:
    """The text, with the kinds and lines of further findings of its cause."""
    if not others:
        return text
    lines = list(dict.fromkeys(_lines(finding) for finding in others))
    more = f", and {len(lines) - MOST_SHOWN} more places" if len(lines) > MOST_SHOWN else ""
    return f"{text}. From the same cause: {', '.join(lines[:MOST_SHOWN])}{more}"


def _lines(finding: Finding) -> str:
    places = [_line(place) for place in (finding.place, finding.other) if place is not None]
    return f"{finding.kind} at {' with '.join(places)}" if places else finding.kind


def _line(place: Place) -> str:
    return f"{short_name(place.file).rpartition('/')[2]}:{place.line}"
