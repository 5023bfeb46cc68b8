"""A clock: up to when one knows what each warp of the cluster did, and what of it lies before a proxy fence.

Most of what is known of a warp is known of all its lanes. One lane that arrives at an mbarrier, or sets a flag, tells
what it did itself, and what others told it; of the lanes beside it nothing. So a clock has a second time for each warp,
and the lanes of which that is known. Where several lanes have told of themselves at different times, the latest is
taken for all of them: an error on the side of silence.
"""

from __future__ import annotations

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import load64, store64

CLOCK_WORDS = at.CLOCK_WORDS
FULL_MASK = machine.FULL_MASK


def clock_bytes(warps: int) -> int:
    """Of one clock."""
    return 8 * CLOCK_WORDS * warps


def raise_to(place: int, time: int) -> None:
    """The word at `place` becomes the maximum of itself and `time`."""
    if load64(place) < time:
        store64(place, time)


def fenced_part(clock: int, warps: int) -> int:
    """The part of a clock that is of what lies before a proxy fence; the first part is of what is known at all."""
    return clock + clock_bytes(warps) // 2


def latest(part: int, warps: int, other: int) -> int:
    """Up to when something is known of `other`, of whichever of its lanes."""
    return int(max(load64(part + 8 * other), load64(part + 8 * (warps + other))))


def lanes_known(part: int, warps: int, other: int, when: int) -> int:
    """The lanes of `other` of which it is known what they did at `when`."""
    if when <= load64(part + 8 * other):
        return FULL_MASK
    if when <= load64(part + 8 * (warps + other)):
        return int(load64(part + 8 * (2 * warps + other)))
    return 0


def tell(part: int, warps: int, other: int, time: int, lanes: int) -> None:
    """What these lanes of `other` did up to `time` is known."""
    everyone, some, mask = part + 8 * other, part + 8 * (warps + other), part + 8 * (2 * warps + other)
    if time <= load64(everyone):
        return
    older, few = load64(some), load64(mask)
    newer, speaking = time, lanes
    if older > newer:
        newer, speaking = older, few
        older, few = time, lanes
    if older <= load64(everyone):
        few = 0
    if older == newer:
        speaking |= few
    if speaking == FULL_MASK:
        store64(everyone, newer)
        return
    if speaking | few == FULL_MASK:
        store64(everyone, older)
        few = 0
    store64(some, newer)
    store64(mask, speaking | few)


def merge_parts(part: int, told: int, warps: int) -> None:
    """What one part of a clock has, another has from now on."""
    for other in range(warps):
        raise_to(part + 8 * other, load64(told + 8 * other))
        time = load64(told + 8 * (warps + other))
        if time:
            tell(part, warps, other, time, load64(told + 8 * (2 * warps + other)))


def merge(clock: int, told: int, warps: int) -> None:
    """What the clock `told` knows, `clock` knows from now on."""
    merge_parts(clock, told, warps)
    merge_parts(fenced_part(clock, warps), fenced_part(told, warps), warps)
