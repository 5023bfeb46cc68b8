"""Simulation of the L1 of each SM and of the shared L2, compiled like the runtime: all addresses are plain integers.

A line is 128 bytes of four sectors; caches store lines with a mask of valid sectors. Tags are line numbers plus one, so
that zero is an empty way. Replacement is least recently used within a set, except for an L1 with random replacement.
"""

from __future__ import annotations

from harness.emulator.abi import cache_layout as at
from harness.emulator.abi import cache_slots as slot
from harness.emulator.abi.raw_memory import load8, load32, load64, store8, store32, store64

MAX = (1 << 63) - 1
SPREAD = 0x9E3779B1
"""An odd multiplier whose products serve as reproducible pseudorandom numbers."""
L1_SKEW = at.L1_SKEW
L2_SKEW = at.L2_SKEW
L2_DIRTY_WAYS = at.L2_DIRTY_WAYS
QUANTUM = at.QUANTUM_INSTRUCTIONS
DELAY_BITS = at.DELAY_BITS
DELAY_MASK = (1 << at.DELAY_BITS) - 1
MASK_SHIFT = at.DELAY_BITS
KIND_SHIFT = MASK_SHIFT + at.MASK_BITS
LINE_SHIFT = KIND_SHIFT + at.KIND_BITS
KIND_MASK = (1 << at.KIND_BITS) - 1
LINE_MASK = (1 << at.LINE_BITS) - 1
LOAD, LOAD_BEYOND_L1, STORE = at.LOAD, at.LOAD_BEYOND_L1, at.STORE
REDUCTION, BULK_STORE = at.REDUCTION, at.BULK_STORE
L2_READ, L2_WRITE, DRAM_READ, DRAM_WRITE = range(4)


def sectors(mask: int) -> int:
    """Number of sectors in `mask`."""
    return (mask & 1) + ((mask >> 1) & 1) + ((mask >> 2) & 1) + ((mask >> 3) & 1)


def fetched(mask: int) -> int:
    """The sectors that DRAM delivers if those of `mask` are missing: pairs of 64 bytes."""
    pairs = (mask | (mask >> 1)) & 0b0101
    return pairs | (pairs << 1)


def count(state: int, line: int, what: int, amount: int) -> None:
    """Add sectors to a counter of the buffer that contains `line`."""
    firsts = load64(state + slot.FIRST_LINES)
    buffer = load64(state + slot.BUFFER_COUNT) - 1
    while load64(firsts + 8 * buffer) > line:
        buffer -= 1
    entry = load64(state + slot.COUNTERS) + 8 * (4 * buffer + what)
    store64(entry, load64(entry) + amount)


def tick(state: int) -> int:
    """A number that increases with every access, for the replacement order."""
    now: int = load64(state + slot.TICK) + 1
    store64(state + slot.TICK, now)
    return now


def find(tags: int, first: int, ways: int, line: int) -> int:
    """The way of the set beginning at entry `first` that contains `line`; -1 if none does."""
    for way in range(first, first + ways):
        if load32(tags + 4 * way) == line + 1:
            return way
    return -1


def oldest(used: int, first: int, ways: int, since: int) -> int:
    """The least recently used way of those used after `since`; an empty way has 0 as time of use."""
    found = first
    least = MAX
    for way in range(first, first + ways):
        when = load64(used + 8 * way)
        if since < when < least:
            least = when
            found = way
    return found


# L2 ------------------------------------------------------------------------------------------------------------------


def home(state: int, line: int) -> int:
    """The partition that a line belongs to."""
    if load64(state + slot.L2_PARTITIONS) == 1:
        return 0
    return ((line * SPREAD) >> 15) & 1


def l2_entry(state: int, partition: int, line: int) -> int:
    """The entry of `line` in a partition: its current one, or the evicted least recently used one of its set."""
    ways = load64(state + slot.L2_SET_WAYS)
    sets = load64(state + slot.L2_SETS)
    # Neighbours that belong to different partitions have the same set number in each.
    number = line if load64(state + slot.L2_PARTITIONS) == 1 else line >> 1
    first = (partition * sets + (number + number // sets * L2_SKEW) % sets) * ways
    tags = load64(state + slot.L2_TAGS)
    used = load64(state + slot.L2_USED)
    entry: int = find(tags, first, ways, line)
    if entry < 0:
        entry = oldest(used, first, ways, -1)
        dirty = load8(load64(state + slot.L2_DIRTY) + entry)
        if dirty:
            count(state, load32(tags + 4 * entry) - 1, DRAM_WRITE, sectors(dirty))
            store8(load64(state + slot.L2_DIRTY) + entry, 0)
        store32(tags + 4 * entry, line + 1)
        store8(load64(state + slot.L2_VALID) + entry, 0)
    store64(used + 8 * entry, tick(state))
    return entry


def read_from_l2(state: int, partition: int, line: int, mask: int) -> int:
    """Read sectors from L2 for an SM at `partition`. Returns 0."""
    count(state, line, L2_READ, sectors(mask))
    valid = load64(state + slot.L2_VALID)
    owner = home(state, line)
    missing = mask
    if owner != partition:
        # The SM's own partition also stores data that came from the other one.
        copy = l2_entry(state, partition, line)
        missing = mask & ~load8(valid + copy)
        store8(valid + copy, load8(valid + copy) | mask)
    if missing:
        entry = l2_entry(state, owner, line)
        absent = missing & ~load8(valid + entry)
        if absent:
            arriving = fetched(absent)
            count(state, line, DRAM_READ, sectors(arriving))
            store8(valid + entry, load8(valid + entry) | arriving)
    return 0


def write_to_l2(state: int, line: int, mask: int) -> int:
    """Write sectors to L2, without fetching any. Returns 0."""
    count(state, line, L2_WRITE, sectors(mask))
    entry = l2_entry(state, home(state, line), line)
    valid = load64(state + slot.L2_VALID) + entry
    dirty = load64(state + slot.L2_DIRTY)
    store8(valid, load8(valid) | mask)
    was_clean = load8(dirty + entry) == 0
    store8(dirty + entry, load8(dirty + entry) | mask)
    if was_clean:
        clean_oldest(state, entry)
    return 0


def clean_oldest(state: int, entry: int) -> None:
    """Write back the oldest dirty line of the set that contains `entry`, if the set has too many."""
    ways = load64(state + slot.L2_SET_WAYS)
    dirty = load64(state + slot.L2_DIRTY)
    used = load64(state + slot.L2_USED)
    first = entry // ways * ways
    many = 0
    found = entry
    for way in range(first, first + ways):
        if load8(dirty + way):
            many += 1
            if load64(used + 8 * way) < load64(used + 8 * found):
                found = way
    if many > L2_DIRTY_WAYS:
        line = load32(load64(state + slot.L2_TAGS) + 4 * found) - 1
        count(state, line, DRAM_WRITE, sectors(load8(dirty + found)))
        store8(dirty + found, 0)


# L1 ------------------------------------------------------------------------------------------------------------------


def pass_l1(state: int, sm: int, line: int, mask: int) -> int:
    """Load sectors into the L1 of an SM; returns the mask of those that missed."""
    sets = load64(state + slot.L1_SETS)
    if sets == 0:
        return mask
    # Each group of as many lines as there are sets starts at another set, so that rows with a large pitch spread over
    # sets.
    ways = load64(state + slot.L1_SET_WAYS)
    first = (sm * sets + (line + line // sets * L1_SKEW) % sets) * ways
    tags = load64(state + slot.L1_TAGS)
    used = load64(state + slot.L1_USED)
    valid = load64(state + slot.L1_VALID)
    entry = find(tags, first, ways, line)
    now = tick(state)
    if entry < 0:
        entry = oldest(used, first, ways, -1)
        if load64(state + slot.L1_RANDOM) and load32(tags + 4 * entry):
            for _ in range(((now * SPREAD) >> 20) % (ways // 2)):
                entry = oldest(used, first, ways, load64(used + 8 * entry))
        store32(tags + 4 * entry, line + 1)
        store8(valid + entry, 0)
    store64(used + 8 * entry, now)
    had: int = load8(valid + entry)
    store8(valid + entry, had | mask)
    return mask & ~had


# Blocks --------------------------------------------------------------------------------------------------------------


def unmerged(state: int, resident: int, line: int, mask: int, delay: int) -> int:
    """The sectors of a store that the block has not stored at the same time already.

    Warps whose rows begin in the middle of a sector share it; the SM sends it to L2 once.
    """
    lines = load64(state + slot.STORED_LINE) + 8 * resident
    masks = load64(state + slot.STORED_MASK) + 8 * resident
    before = load64(masks) if delay == 0 and load64(lines) == line else 0
    store64(lines, line)
    store64(masks, before | mask)
    return mask & ~before


def access(state: int, resident: int, word: int) -> None:
    """Simulate one access of a resident block."""
    line = (word >> LINE_SHIFT) & LINE_MASK
    mask = (word >> MASK_SHIFT) & 0xF
    kind = (word >> KIND_SHIFT) & KIND_MASK
    sm = load64(load64(state + slot.SM) + 8 * resident)
    partition = load64(load64(state + slot.PARTITION) + 8 * resident)
    if kind == LOAD:
        missing = pass_l1(state, sm, line, mask)
        if missing:
            read_from_l2(state, partition, line, missing)
    elif kind == LOAD_BEYOND_L1:
        read_from_l2(state, partition, line, mask)
    elif kind == STORE:
        pass_l1(state, sm, line, mask)
        written = unmerged(state, resident, line, mask, word & DELAY_MASK)
        if written:
            write_to_l2(state, line, written)
    elif kind == BULK_STORE:
        write_to_l2(state, line, mask)
    else:
        read_from_l2(state, partition, line, mask)
        write_to_l2(state, line, mask)
        if kind == REDUCTION:  # L2 combines the values and returns nothing
            count(state, line, L2_READ, -sectors(mask))


def advance(state: int) -> int:
    """Run all resident blocks in turns, a quantum each, until at least one has ended; returns how many have.

    A place without a running block has 0 as its next access. Returns 0 if there is nothing to run.
    """
    residents = load64(state + slot.RESIDENTS)
    nexts = load64(state + slot.NEXT_ACCESS)
    ends = load64(state + slot.END_ACCESS)
    times = load64(state + slot.ACCESS_TIME)
    running = 0
    for resident in range(residents):
        running += 1 if load64(nexts + 8 * resident) else 0
    ended = 0
    while running > 0 and ended == 0:
        until = load64(state + slot.NOW) + QUANTUM
        store64(state + slot.NOW, until)
        for resident in range(residents):
            place = load64(nexts + 8 * resident)
            if place == 0:
                continue
            time = load64(times + 8 * resident)
            end = load64(ends + 8 * resident)
            while time < until:
                access(state, resident, load64(place))
                place += 8
                if place == end:
                    place = 0
                    ended += 1
                    break
                time += load64(place) & DELAY_MASK
            store64(nexts + 8 * resident, place)
            store64(times + 8 * resident, time)
    return ended


EXPORTS = {"advance": advance}
"""Functions by name, for the cache model."""
