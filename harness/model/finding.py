"""Defines a sanitizer's findings: mistakes that do not end the kernel and may not affect the answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

UNINITIALISED_READ = "uninitialised read"
OUTPUT_NOT_WRITTEN = "output not written"
RACES = ("RAW race", "WAR race", "WAW race")
KINDS = (
    UNINITIALISED_READ, OUTPUT_NOT_WRITTEN, "input written", *RACES,
    "undefined shuffle", "undefined register", "masks differ", "missing proxy fence", "accumulator read early",
    "register written early", "missing wgmma fence", "store not awaited", "not deterministic",
)  # fmt: skip
"""Kinds of findings. Races are named as usual: a read after a write (RAW), a write after a read (WAR), a write after a
write (WAW)."""


@dataclass(frozen=True)
class Place:
    """A thread at a source line."""

    file: str
    """File name from the compiler; empty if unknown."""
    line: int
    """Line number; 0 if unknown."""
    block: tuple[int, int, int]
    thread: tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A mistake at its first occurrence. Unknown fields are None."""

    kind: str
    """One of `KINDS` or `KernelFault.KINDS`, or the name of a tool of `compute-sanitizer`."""
    message: str
    """The complete message: kernel, lines, blocks, threads, buffer and offset."""
    kernel: str | None = None
    place: Place | None = None
    """The access at which the mistake was detected."""
    other: Place | None = None
    """The earlier event: the other access of a race, the store to memory that lacks a fence, or the product whose
    accumulator is read too early."""
    target: str | None = None
    """Location: `shared memory`, `local memory`, `buffer X` or `variable x`."""
    offset: int | None = None
    """Offset in `target`, in bytes."""
    count: int = 1
    """Number of occurrences at the same lines; for `output not written`, the number of elements."""


def findings_by_cause(findings: Iterable[Finding]) -> list[tuple[Finding, ...]]:
    """Group the findings that one missing barrier would explain; each other finding is alone.

    These are races on the same memory of a kernel, and reads of that memory before it was written. In a group, races
    come first, a read after a write (RAW) before others at the same lines. Groups are in order of occurrence, except
    that races precede other reads of unwritten memory.
    """
    groups: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        ordered = finding.kind in (*RACES, UNINITIALISED_READ) and finding.target is not None
        groups.setdefault((finding.kernel, finding.target) if ordered else number, []).append(finding)
    found: list[tuple[Finding, ...]] = []
    for group in groups.values():
        has_race = any(finding.kind in RACES for finding in group)
        found += [tuple(_most_telling_first(group))] if has_race else [(each,) for each in group]
    last_race = max((number for number, group in enumerate(found) if group[0].kind in RACES), default=-1)
    before = found[: last_race + 1]
    return [*sorted(before, key=lambda group: group[0].kind == UNINITIALISED_READ), *found[last_race + 1 :]]


def _most_telling_first(group: list[Finding]) -> list[Finding]:
    """Races first, and of those at one pair of lines, RAW races."""
    lines = [_lines(finding) for finding in group]
    first = {pair: number for number, pair in reversed([*enumerate(lines)])}
    return sorted(
        group, key=lambda f: (f.kind not in RACES, first[_lines(f)], RACES.index(f.kind) if f.kind in RACES else 0)
    )


def _lines(finding: Finding) -> frozenset[tuple[str, int]]:
    return frozenset((place.file, place.line) for place in (finding.place, finding.other) if place is not None)
