"""mbarrier objects (PTX ISA 9.7.13.15): 64 bits of shared memory that count arrivals and bytes of copies.

A phase completes once no arrival and no byte is pending; the next one begins at once, with the same number of expected
arrivals. The format of the bits is the emulator's own, see `abi/async_proxy_layout.py`. A test of a barrier
(`test_wait`, `try_wait`) completes the bulk copies that the phase counts, if it is the phase that is waited for and not
yet complete; the warp then yields to the others.
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import layout as at
from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.abi.cluster_memory import ENDED, place_of, warp_number
from harness.emulator.abi.context import (
    ASYNC_PROXY,
    CHANGES,
    FAULT_KIND,
    LENIENT,
    LENIENT_ARRIVAL,
    SANITIZER,
    SHARED_ORIGIN,
    STEPS,
)
from harness.emulator.abi.fault_record import note_first, set_fault
from harness.emulator.abi.raw_memory import call_host, load32, load64, store32, store64
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
"""Where generated code stores each lane's count, or parity, 4 bytes; barrier addresses are in ADDRESSES."""
TRANSFERS = at.DATA_2
"""The number by which each lane changes its phase's pending bytes, 4 bytes, signed."""
TOKENS = at.DATA_3
"""Phases, 8 bytes per lane: the result of an arrival, and the operand of a wait by phase."""
ARRIVES, DROPS, OWN = 1, 2, 4
"""Flags of `mbarrier_arrive`: arrive; reduce the expected arrivals of later phases; require the barrier to be the
block's own (`.shared::cta`)."""


def place_at(ctx: int, warp: int, site: int, lane: int, own: int) -> int:
    """The place of the lane's barrier, the block's `own` or any; negative, with a fault recorded, if it is invalid."""
    address = load64(warp + at.ADDRESSES + 8 * lane)
    return int(checked_place(ctx, site, lane, address, BARRIER_BYTES, BARRIER_BYTES, own))


def live_place(ctx: int, warp: int, site: int, lane: int, own: int) -> int:
    """The place of the lane's barrier, which has to be initialized; negative, with a fault recorded, if it is not."""
    place = place_at(ctx, warp, site, lane, own)
    if place >= 0 and (load64(load64(ctx + SHARED_ORIGIN) + place) >> VALID_AT) & 3 != 1:
        set_fault(ctx, NO_MBARRIER, site, lane, load64(warp + at.ADDRESSES + 8 * lane), BARRIER_BYTES)
        return -1
    return int(place)


def arrives_in_vain(ctx: int, warp: int, site: int, lane: int) -> int:
    """Whether the lane's barrier is in a block that has ended, which is noted, not a fault, if `LENIENT` is set."""
    address = load64(warp + at.ADDRESSES + 8 * lane)
    if not load64(ctx + LENIENT) or place_of(ctx, address, BARRIER_BYTES) != ENDED:
        return 0
    note_first(ctx + LENIENT_ARRIVAL, site)
    return 1


def expected_by(ctx: int, place: int) -> int:
    """Address of the record of the instruction that last set the expected bytes, for messages."""
    return int(load64(load64(ctx + ASYNC_PROXY) + proxy.EXPECTED_BY) + 4 * (place // BARRIER_BYTES))


def mbarrier_init(ctx: int, warp: int, site: int, mask: int) -> int:
    """`mbarrier.init`. Returns 1 on a fault, else 0."""
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
    """`mbarrier.inval`: invalidate the barrier. Returns 1 on a fault, else 0."""
    for lane in range(32):
        if (mask >> lane) & 1:
            place = live_place(ctx, warp, site, lane, 1)
            if place < 0:
                return 1
            store64(load64(ctx + SHARED_ORIGIN) + place, -1)
    return 0


def mbarrier_arrive(ctx: int, warp: int, site: int, mask: int, action: int) -> int:
    """Count bytes and arrivals, and leave the previous phase in TOKENS. Returns 1 on a fault, else 0."""
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        if arrives_in_vain(ctx, warp, site, lane):
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
    """A barrier's word with these counts, advanced to the next phase if nothing is pending."""
    phase = (word >> PHASE_AT) & 1
    if pending == 0 and left == NO_BYTES:
        phase ^= 1
        pending = expected
    return (1 << VALID_AT) | (phase << PHASE_AT) | (left << BYTES_AT) | (expected << COUNT_BITS) | pending


def land_tensor_operations(ctx: int, place: int) -> bool:
    """Complete what commits of `tcgen05` wait for at this place, if the kernel has any. Returns whether it faults."""
    state = load64(load64(ctx + ASYNC_PROXY) + proxy.TENSOR_MEMORY)
    if state == 0:
        return False
    store64(state + tensor.AWAITED, place)
    call_host(load64(state + tensor.LAND), ctx)
    return bool(load64(ctx + FAULT_KIND) != 0)


def mbarrier_wait(ctx: int, warp: int, site: int, mask: int, by_parity: int) -> int:
    """Mask of the lanes whose phase is complete; -1 on a fault. Copies that their barriers count complete now."""
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
        parity = load32(warp + COUNTS + 4 * lane) & 1
        if not by_parity:
            parity = (load64(warp + TOKENS + 8 * lane) >> PHASE_AT) & 1
        if phase == parity:
            if land_loads(ctx, place) or land_tensor_operations(ctx, place):
                return -1
            phase = (load64(load64(ctx + SHARED_ORIGIN) + place) >> PHASE_AT) & 1
        if phase != parity:
            done |= 1 << lane
            over = place
            if load64(ctx + SANITIZER):
                use_mbarrier(load64(ctx + SANITIZER), warp_number(ctx), lane, site, place, 0)
        else:
            store64(warp + at.LOOKED_AT, load64(ctx + STEPS))
            store32(warp + at.WAIT_SITE, site)
            store32(warp + at.WAIT_PLACE, place)
            store32(warp + at.WAIT_PARITY, parity)
    if over >= 0:
        end_wait(ctx, warp, site, over)
    return done
