"""Grid clocks: up to which time the actions of each other cluster of the launch are known.

A grid clock has a word for each cluster (usually a block), in order of their beginnings; in launches of very many
clusters one word for all of them, by which races may be missed.

What a warp acquires from other clusters is a view: a grid clock and the time at which it was acquired. Acquiring is an
action of the warp, so whoever knows that action knows the view, by whatever way its own cluster was synchronised. The
first view of a warp is pending: it has been read, but no fence followed.

What a warp acquires of its own cluster, because another cluster has acquired it before, becomes part of its own clock.
"""

from __future__ import annotations

from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.sanitizer.clock_words import (
    BLOCK_START,
    TIME,
    WARPS,
    clock_of,
    fenced_part,
    knows_warp,
    raise_to,
)

GRID_WORDS, GRID_CLOCKS, VIEW_TIMES, VIEW_COUNT, COUNTS = (
    at.SLOT[n] for n in ("GRID_WORDS", "GRID_CLOCKS", "VIEWS", "VIEW_COUNT", "COUNTS")
)
CLUSTER_COUNT, CLUSTER_SHIFT = at.CLUSTER_COUNT, at.CLUSTER_SHIFT
WARP_VIEWS = at.WARP_VIEWS


def words_in_use(state: int) -> int:
    """Number of words of a grid clock that have a meaning so far."""
    return int(min(load64(state + GRID_WORDS), load64(load64(state + COUNTS) + CLUSTER_COUNT)))


def word_of(state: int, when: int) -> int:
    """Index of the word for the cluster to which a time belongs."""
    return 0 if load64(state + GRID_WORDS) == 1 else (when >> CLUSTER_SHIFT) - 1


def view_of(state: int, warp: int, number: int) -> int:
    """A grid clock of a warp."""
    return int(load64(state + GRID_CLOCKS) + 8 * load64(state + GRID_WORDS) * (WARP_VIEWS * warp + number))


def view_time(state: int, warp: int, number: int) -> int:
    """Address of the time at which it was acquired; 0 if it was not."""
    return int(load64(state + VIEW_TIMES) + 8 * (WARP_VIEWS * warp + number))


def clear_grid(state: int, clock: int) -> None:
    """Forget what the grid clock knows."""
    for word in range(words_in_use(state)):
        store64(clock + 8 * word, 0)


def known_in(state: int, released: int, passed: int, word: int) -> int:
    """A word of a record's two grid clocks. What the current cluster released itself is in its own record."""
    known = load64(passed + 8 * word)
    if load64(state + GRID_WORDS) == 1 or word != word_of(state, load64(state + BLOCK_START)):
        known = max(known, load64(released + 8 * word))
    return int(known)


def is_news(state: int, warp: int, released: int, passed: int) -> bool:
    """Whether the clocks know something that is in no view of the warp."""
    for word in range(words_in_use(state)):
        known = 0
        for number in range(1, WARP_VIEWS):
            if load64(view_time(state, warp, number)):
                known = max(known, load64(view_of(state, warp, number) + 8 * word))
        if known_in(state, released, passed, word) > known:
            return True
    return False


def add_view(state: int, warp: int, released: int, passed: int) -> None:
    """The warp acquires a record's grid clocks now.

    If it has no room for a view, the last one gets older than it is.
    """
    know_own(state, warp, load64(passed + 8 * word_of(state, load64(state + BLOCK_START))))
    if not is_news(state, warp, released, passed):
        return
    number = 1
    while number < WARP_VIEWS - 1 and load64(view_time(state, warp, number)):
        number += 1
    extend(state, warp, number, released, passed)


def know_own(state: int, warp: int, until: int) -> None:
    """The warp learns from another cluster what its own cluster did up to a time."""
    known = min(until, load64(state + TIME))
    if known <= load64(state + BLOCK_START):
        return
    warps, clock = load64(state + WARPS), clock_of(state, warp)
    for other in range(warps):
        raise_to(clock + 8 * other, known)
        raise_to(fenced_part(clock, warps) + 8 * other, known)


def add_pending(state: int, warp: int, released: int, passed: int) -> None:
    """The warp has read what was released with these grid clocks, and acquires it by a later fence."""
    extend(state, warp, 0, released, passed)


def extend(state: int, warp: int, number: int, released: int, passed: int) -> None:
    """Merge a record's grid clocks into a view of the warp, which is made if there is none."""
    view = view_of(state, warp, number)
    if load64(view_time(state, warp, number)) == 0:
        store64(view_time(state, warp, number), load64(state + TIME))
        store64(state + VIEW_COUNT, load64(state + VIEW_COUNT) + 1)
        clear_grid(state, view)
    for word in range(words_in_use(state)):
        raise_to(view + 8 * word, known_in(state, released, passed, word))


def acquire_pending_views(state: int, warp: int) -> None:
    """A fence: the warp acquires what it has read, or a warp that it has met since."""
    for other in range(load64(state + WARPS)):
        when = load64(view_time(state, other, 0))
        if when and knows_warp(state, warp, other, when):
            view = view_of(state, other, 0)
            add_view(state, warp, view, view)


def release_views(state: int, warp: int, until: int, clock: int) -> None:
    """Merge what a warp knew of other clusters at the time `until` into `clock`."""
    if load64(state + VIEW_COUNT) == 0:
        return
    for other in range(load64(state + WARPS)):
        for number in range(1, WARP_VIEWS):
            when = load64(view_time(state, other, number))
            if when and when <= until and knows_warp(state, warp, other, when):
                view = view_of(state, other, number)
                for word in range(words_in_use(state)):
                    raise_to(clock + 8 * word, load64(view + 8 * word))


def knows_cluster(state: int, warp: int, when: int) -> bool:
    """Whether a warp knows what another cluster did at `when`."""
    if load64(state + VIEW_COUNT) == 0:
        return False
    word = word_of(state, when)
    for other in range(load64(state + WARPS)):
        for number in range(1, WARP_VIEWS):
            acquired = load64(view_time(state, other, number))
            if (
                acquired
                and load64(view_of(state, other, number) + 8 * word) >= when
                and knows_warp(state, warp, other, acquired)
            ):
                return True
    return False


def forget_views(state: int) -> None:
    """A cluster begins."""
    store64(state + VIEW_COUNT, 0)
    for place in range(load64(state + VIEW_TIMES), view_time(state, load64(state + WARPS), 0), 8):
        store64(place, 0)
