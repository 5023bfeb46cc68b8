"""Counts findings by kind and pair of instructions; details of one of each are stored.

That is the first one, or of races the first one between threads of different warps, if there is one: threads of one
warp often run in lockstep, so that a reader takes their race for harmless.
"""

from __future__ import annotations

from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import load64, store64

TIME, FINDINGS, COUNTS = (at.SLOT[n] for n in ("TIME", "FINDINGS", "COUNTS"))
FINDING_COUNT, LOST = at.FINDING_COUNT, at.LOST
RAW, WAW = at.RAW, at.WAW
LIMIT, STRIDE = at.FINDING_LIMIT, 8 * at.FINDING_WORDS


def describe(state: int, entry: int, thread: int, address: int, size: int, when: int, other: int) -> None:
    """Store the details of a finding that is made now."""
    store64(entry + 32, load64(state + TIME))
    store64(entry + 40, thread)
    store64(entry + 48, when)
    store64(entry + 56, other)
    store64(entry + 64, address)
    store64(entry + 72, size)


def report(
    state: int, kind: int, site: int, thread: int, address: int, size: int, before: int, when: int, other: int
) -> None:
    """Count a finding: `thread` accesses now at `site`, and thread `other` did at `when` at site `before`."""
    table = load64(state + FINDINGS)
    counts = load64(state + COUNTS)
    count = load64(counts + FINDING_COUNT)
    for index in range(count):
        entry = table + STRIDE * index
        if load64(entry) == kind and load64(entry + 8) == site and load64(entry + 16) == before:
            store64(entry + 24, load64(entry + 24) + 1)
            is_race = RAW <= kind <= WAW
            if is_race and thread >> 5 != other >> 5 and load64(entry + 40) >> 5 == load64(entry + 56) >> 5:
                describe(state, entry, thread, address, size, when, other)
            return
    if count == LIMIT:
        store64(counts + LOST, load64(counts + LOST) + 1)
        return
    entry = table + STRIDE * count
    store64(entry, kind)
    store64(entry + 8, site)
    store64(entry + 16, before)
    store64(entry + 24, 1)
    describe(state, entry, thread, address, size, when, other)
    store64(counts + FINDING_COUNT, count + 1)
