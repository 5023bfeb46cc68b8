"""Grid clocks: up to which time the actions of each other cluster of the launch are known.

Clusters (usually blocks) run one after the other, so a time identifies the cluster that ran then. A grid clock has a
word for each cluster, in order of their beginnings; in launches of very many clusters one word for all of them, by
which races may be missed.

What a warp acquires from other clusters is a view: a grid clock and the time at which it was acquired. Acquiring is an
action of the warp, so whoever knows that action knows the view, by whatever way its own cluster was synchronised. The
first view of a warp is pending: it has been read, but no fence followed.
"""

from __future__ import annotations

from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.sanitizer.clock_words import TIME, WARPS, knows_warp, raise_to

GRID_WORDS, GRID_CLOCKS, VIEW_TIMES, VIEW_COUNT, PENDING, BLOCK_LOG, BLOCK_COUNT = (
    at.SLOT[n] for n in ("GRID_WORDS", "GRID_CLOCKS", "VIEWS", "VIEW_COUNT", "PENDING", "BLOCK_LOG", "BLOCK_COUNT")
)
PENDING_GRID, PENDING_BYTES, WARP_VIEWS = at.PENDING_GRID, at.PENDING_BYTES, at.WARP_VIEWS


def words_in_use(state: int) -> int:
    """Number of words of a grid clock that have a meaning so far."""
    return int(min(load64(state + GRID_WORDS), load64(state + BLOCK_COUNT)))


def word_of(state: int, when: int) -> int:
    """Index of the word for the cluster that ran at `when`."""
    if load64(state + GRID_WORDS) == 1:
        return 0
    first, end = 0, load64(state + BLOCK_COUNT)
    while end - first > 1:
        middle = (first + end) // 2
        if load64(load64(state + BLOCK_LOG) + 16 * middle) <= when:
            first = middle
        else:
            end = middle
    return first


def view_of(state: int, warp: int, number: int) -> int:
    """A grid clock of a warp."""
    return int(load64(state + GRID_CLOCKS) + 8 * load64(state + GRID_WORDS) * (WARP_VIEWS * warp + number))


def view_time(state: int, warp: int, number: int) -> int:
    """Address of the time at which it was acquired; 0 if it was not."""
    return int(load64(state + VIEW_TIMES) + 8 * (WARP_VIEWS * warp + number))


def merge_grid(state: int, clock: int, source: int) -> None:
    """Merge the grid clock `source` into `clock`."""
    for word in range(words_in_use(state)):
        raise_to(clock + 8 * word, load64(source + 8 * word))


def clear_grid(state: int, clock: int) -> None:
    """Forget what the grid clock knows."""
    for word in range(words_in_use(state)):
        store64(clock + 8 * word, 0)


def is_news(state: int, warp: int, clock: int) -> bool:
    """Whether the clock knows something that is in no view of the warp."""
    for word in range(words_in_use(state)):
        known = 0
        for number in range(1, WARP_VIEWS):
            if load64(view_time(state, warp, number)):
                known = max(known, load64(view_of(state, warp, number) + 8 * word))
        if load64(clock + 8 * word) > known:
            return True
    return False


def add_view(state: int, warp: int, clock: int) -> None:
    """The warp acquires the grid clock now. If it has no room for a view, the last one gets older than it is."""
    if not is_news(state, warp, clock):
        return
    number = 1
    while number < WARP_VIEWS - 1 and load64(view_time(state, warp, number)):
        number += 1
    _extend(state, warp, number, clock)


def add_pending(state: int, warp: int, clock: int) -> None:
    """The warp has read what was released with this grid clock, and acquires it by a later fence."""
    _extend(state, warp, 0, clock)


def _extend(state: int, warp: int, number: int, clock: int) -> None:
    if load64(view_time(state, warp, number)) == 0:
        store64(view_time(state, warp, number), load64(state + TIME))
        store64(state + VIEW_COUNT, load64(state + VIEW_COUNT) + 1)
        clear_grid(state, view_of(state, warp, number))
    merge_grid(state, view_of(state, warp, number), clock)


def acquire_pending_views(state: int, warp: int) -> None:
    """A fence: the warp acquires what it has read, or a warp that it has met since."""
    for other in range(load64(state + WARPS)):
        when = load64(view_time(state, other, 0))
        if when and knows_warp(state, warp, other, when):
            add_view(state, warp, view_of(state, other, 0))


def release_views(state: int, warp: int, clock: int) -> None:
    """Merge what a warp knows of other clusters into `clock`."""
    if load64(state + VIEW_COUNT) == 0:
        return
    for other in range(load64(state + WARPS)):
        for number in range(1, WARP_VIEWS):
            when = load64(view_time(state, other, number))
            if when and knows_warp(state, warp, other, when):
                merge_grid(state, clock, view_of(state, other, number))


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
