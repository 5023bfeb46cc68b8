"""mbarrier objects (PTX ISA 9.7.13.15): 64 bits of shared memory that count arrivals, and bytes that copies bring.

A phase is over once no arrival and no byte is missing; the next one begins at once, with as many arrivals to wait for.
How the bits are used is nobody's business but ours, see `abi/async_proxy_layout.py`. A look at a barrier (`test_wait`,
`try_wait`) is where the bulk copies land that the phase counts, if it is that phase which is waited for and it is not
over; the warp then lets the others have a turn.
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import layout as at
from harness.emulator.abi.cluster_memory import warp_number
from harness.emulator.abi.context import ASYNC_PROXY, CHANGES, SANITIZER, SHARED_ORIGIN, STEPS
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import load32, load64, store32, store64
from harness.emulator.memory.bulk_copies import checked_place
from harness.emulator.memory.bulk_landing import land_loads
from harness.emulator.memory.trace import arrive_in_time, begin_look, end_wait
from harness.emulator.sanitizer.async_proxy import begin_mbarrier, finish_mbarrier_phase, use_mbarrier

NO_MBARRIER, MBARRIER_COUNT = at.FAULT["no mbarrier"], at.FAULT["mbarrier count"]
MBARRIER_BYTES = at.FAULT["mbarrier bytes"]
COUNT_BITS, COUNT_MASK = proxy.COUNT_BITS, (1 << proxy.COUNT_BITS) - 1
BYTES_AT, NO_BYTES, PHASE_AT, VALID_AT = proxy.BYTES_AT, proxy.NO_BYTES, proxy.PHASE_AT, proxy.VALID_AT
BARRIER_BYTES = proxy.MBARRIER_BYTES
COUNTS = at.DATA
"""Where generated code leaves each lane's count, or parity, 4 bytes; the barriers' addresses are in ADDRESSES."""
TRANSFERS = at.DATA_2
"""How many bytes more each lane's phase waits for, 4 bytes, with a sign."""
TOKENS = at.DATA_3
"""The phases: what an arrival gives, and a wait by phase takes; 8 bytes for each lane."""
ARRIVES, DROPS, OWN = 1, 2, 4
"""What `mbarrier_arrive` does besides counting bytes: arrive, and leave later phases with fewer arrivals. The barrier
has to be the block's own (`.shared::cta`)."""


def place_at(ctx: int, warp: int, site: int, lane: int, own: int) -> int:
    """The place of the lane's barrier, of the block's `own` or of any; below 0, and a fault on record, if of none."""
    address = load64(warp + at.ADDRESSES + 8 * lane)
    return int(checked_place(ctx, site, lane, address, BARRIER_BYTES, BARRIER_BYTES, own))


def live_place(ctx: int, warp: int, site: int, lane: int, own: int) -> int:
    """The same, of a barrier that has been initialised."""
    place = place_at(ctx, warp, site, lane, own)
    if place >= 0 and (load64(load64(ctx + SHARED_ORIGIN) + place) >> VALID_AT) & 3 != 1:
        set_fault(ctx, NO_MBARRIER, site, lane, load64(warp + at.ADDRESSES + 8 * lane), BARRIER_BYTES)
        return -1
    return int(place)


def expected_by(ctx: int, place: int) -> int:
    """Where the instruction is noted that last said how many bytes are to come, for messages."""
    return int(load64(load64(ctx + ASYNC_PROXY) + proxy.EXPECTED_BY) + 4 * (place // BARRIER_BYTES))


def mbarrier_init(ctx: int, warp: int, site: int, mask: int) -> int:
    """`mbarrier.init`. 1 on a fault, else 0."""
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        place = place_at(ctx, warp, site, lane, 1)
        if place < 0:
            return 1
        count = load32(warp + COUNTS + 4 * lane)
        if count < 1 or count > COUNT_MASK:
            set_fault(ctx, MBARRIER_COUNT, site, lane, 0, count)
            return 1
        word = (1 << VALID_AT) | (NO_BYTES << BYTES_AT) | (count << COUNT_BITS) | count
        store64(load64(ctx + SHARED_ORIGIN) + place, word)
        store32(expected_by(ctx, place), 0)
        if load64(ctx + SANITIZER):
            begin_mbarrier(load64(ctx + SANITIZER), warp_number(ctx), lane, site, place)
    store64(ctx + CHANGES, load64(ctx + CHANGES) + 1)
    return 0


def mbarrier_inval(ctx: int, warp: int, site: int, mask: int) -> int:
    """`mbarrier.inval`: the place holds nothing again. 1 on a fault, else 0."""
    for lane in range(32):
        if (mask >> lane) & 1:
            place = live_place(ctx, warp, site, lane, 1)
            if place < 0:
                return 1
            store64(load64(ctx + SHARED_ORIGIN) + place, -1)
    return 0


def mbarrier_arrive(ctx: int, warp: int, site: int, mask: int, action: int) -> int:
    """Count bytes and arrivals; the phase before is in TOKENS afterwards. 1 on a fault, else 0."""
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        place = live_place(ctx, warp, site, lane, action & OWN)
        if place < 0:
            return 1
        host = load64(ctx + SHARED_ORIGIN) + place
        word = load64(host)
        store64(warp + TOKENS + 8 * lane, word)
        more = load32(warp + TRANSFERS + 4 * lane)
        more -= (more >> 31) << 32
        if more > 0:
            store32(expected_by(ctx, place), site + 1)
        pending, expected = word & COUNT_MASK, (word >> COUNT_BITS) & COUNT_MASK
        left = ((word >> BYTES_AT) & (2 * NO_BYTES - 1)) + more
        if left < 0 or left >= 2 * NO_BYTES:
            set_fault(ctx, MBARRIER_BYTES, site, lane, left - NO_BYTES, NO_BYTES - 1)
            return 1
        if action & ARRIVES:
            count = load32(warp + COUNTS + 4 * lane)
            if count < 1 or count > pending:
                set_fault(ctx, MBARRIER_COUNT, site, lane, 1 + pending, count)
                return 1
            pending -= count
            if action & DROPS:
                expected -= count
        arrive_in_time(ctx, place)
        after = settled(word, pending, expected, left)
        store64(host, after)
        if load64(ctx + SANITIZER):
            use_mbarrier(load64(ctx + SANITIZER), warp_number(ctx), lane, site, place, 1)
            if (word ^ after) >> PHASE_AT & 1:
                finish_mbarrier_phase(load64(ctx + SANITIZER), place)
    store64(ctx + CHANGES, load64(ctx + CHANGES) + 1)
    return 0


def settled(word: int, pending: int, expected: int, left: int) -> int:
    """A barrier's word with these counts, in its next phase where nothing is missing in this one."""
    phase = (word >> PHASE_AT) & 1
    if pending == 0 and left == NO_BYTES:
        phase ^= 1
        pending = expected
    return (1 << VALID_AT) | (phase << PHASE_AT) | (left << BYTES_AT) | (expected << COUNT_BITS) | pending


def mbarrier_wait(ctx: int, warp: int, site: int, mask: int, by_parity: int) -> int:
    """The lanes whose phase is over, as bits; -1 on a fault. What their barriers count lands now."""
    done, over = 0, -1
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        place = live_place(ctx, warp, site, lane, 1)
        if place < 0:
            return -1
        if not done:
            begin_look(ctx, warp, site, place)
        phase = (load64(load64(ctx + SHARED_ORIGIN) + place) >> PHASE_AT) & 1
        asked = load32(warp + COUNTS + 4 * lane) & 1
        if not by_parity:
            asked = (load64(warp + TOKENS + 8 * lane) >> PHASE_AT) & 1
        if phase == asked:
            if land_loads(ctx, place):
                return -1
            phase = (load64(load64(ctx + SHARED_ORIGIN) + place) >> PHASE_AT) & 1
        if phase != asked:
            done |= 1 << lane
            over = place
            if load64(ctx + SANITIZER):
                use_mbarrier(load64(ctx + SANITIZER), warp_number(ctx), lane, site, place, 0)
        else:
            store64(warp + at.LOOKED_AT, load64(ctx + STEPS))
            store32(warp + at.WAIT_SITE, site)
            store32(warp + at.WAIT_PLACE, place)
            store32(warp + at.WAIT_PARITY, asked)
    if over >= 0:
        end_wait(ctx, warp, site, over)
    return done
