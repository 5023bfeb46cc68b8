"""What a sanitizer found: not a fault, which ends the kernel, but what a right answer may hide."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = (
    "uninitialised read",
    "output not written",
    "input written",
    "RAW race",
    "WAR race",
    "WAW race",
    "undefined shuffle",
    "undefined register",
    "masks differ",
    "missing proxy fence",
    "accumulator read early",
    "register written early",
    "missing wgmma fence",
    "store not awaited",
    "not deterministic",
)
"""A race is named after what came second: a read after a write, a write after a read, a write after a write."""


@dataclass(frozen=True)
class Place:
    """One thread at one line."""

    file: str
    """As the compiler names it; empty where it gave none."""
    line: int
    """0 where the compiler gave none."""
    block: tuple[int, int, int]
    thread: tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One mistake, at its first occurrence. What is not known is None."""

    kind: str
    """One of `KINDS`, of `KernelFault.KINDS`, or a tool of `compute-sanitizer`."""
    message: str
    """All of it as a sentence: kernel, lines, blocks, threads, buffer and offset."""
    kernel: str | None = None
    place: Place | None = None
    """The access at which it showed."""
    other: Place | None = None
    """What came before: of a race the other access, of memory that misses a fence the store, of an accumulator that is
    read early the product."""
    target: str | None = None
    """`shared memory`, `local memory`, `buffer X` or `variable x`."""
    offset: int | None = None
    """In `target`, in bytes."""
    count: int = 1
    """How often, by the same lines."""
