"""Defines a sanitizer's findings: mistakes that do not end the kernel and may not affect the answer."""

from __future__ import annotations

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
