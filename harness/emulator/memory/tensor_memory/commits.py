"""Completes commits of Blackwell's tensor cores (`tcgen05.commit`, PTX ISA 9.7.16.11.2), which arrive at mbarriers."""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import context
from harness.emulator.abi import layout as at
from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.memory.mbarriers import settled
from harness.emulator.memory.tensor_memory.cells import state_of
from harness.emulator.memory.tensor_memory.operations import complete_before, operation_at
from harness.emulator.sanitizer.async_proxy import finish_mbarrier_phase
from harness.emulator.sanitizer.tensor_memory import release_commit

KIND, IN_FLIGHT, THREAD, PAIR, SITE, BARRIER = (
    tensor.KIND, tensor.IN_FLIGHT, tensor.THREAD, tensor.PAIR, tensor.SITE, tensor.BARRIER,
)  # fmt: skip
HEAD, TAIL, COMMIT = tensor.HEAD, tensor.TAIL, tensor.COMMIT
NO_MBARRIER, MBARRIER_COUNT = at.FAULT["no mbarrier"], at.FAULT["mbarrier count"]


def forget_complete(state: int) -> None:
    """Remove completed operations from the front of the ring."""
    head = load64(state + HEAD)
    while head < load64(state + TAIL) and load64(operation_at(state, head) + IN_FLIGHT) == 0:
        head += 1
    store64(state + HEAD, head)


def land_commits(ctx: int) -> int:
    """Complete what the current phase of the mbarrier at AWAITED waits for. Returns 0; a fault is recorded.

    Commits of a thread arrive in their order, so those before the awaited one arrive at their mbarriers, too.
    """
    state = state_of(ctx)
    place = load64(state + tensor.AWAITED)
    for number in range(load64(state + HEAD), load64(state + TAIL)):
        commit = operation_at(state, number)
        if not load64(commit + IN_FLIGHT) or load64(commit + KIND) != COMMIT or load64(commit + BARRIER) != place:
            continue
        if complete_before(ctx, number):
            return 0
        if land_until(ctx, number):
            break
    forget_complete(state)
    return 0


def land_until(ctx: int, last: int) -> int:
    """Let a thread's commits up to this number arrive. Returns whether the last one ends its phase, or one faults."""
    state = state_of(ctx)
    awaited = operation_at(state, last)
    ends = 0
    for number in range(load64(state + HEAD), last + 1):
        commit = operation_at(state, number)
        if not load64(commit + IN_FLIGHT) or load64(commit + KIND) != COMMIT:
            continue
        if load64(commit + THREAD) != load64(awaited + THREAD) or load64(commit + PAIR) != load64(awaited + PAIR):
            continue
        store64(commit + IN_FLIGHT, 0)
        store64(ctx + context.CHANGES, load64(ctx + context.CHANGES) + 1)
        ends = arrive_once(ctx, commit, load64(commit + BARRIER))
        if load64(ctx + context.FAULT_KIND):
            return 1
    return int(ends)


def arrive_once(ctx: int, commit: int, place: int) -> int:
    """Count the arrival of a commit. Returns whether it ends the phase, or is a fault."""
    host = load64(ctx + context.SHARED_ORIGIN) + place
    word, mask = load64(host), (1 << proxy.COUNT_BITS) - 1
    pending, expected = word & mask, (word >> proxy.COUNT_BITS) & mask
    site, lane = load64(commit + SITE), load64(commit + THREAD) & 31
    if (word >> proxy.VALID_AT) & 3 != 1:
        set_fault(ctx, NO_MBARRIER, site, lane, place, proxy.MBARRIER_BYTES)
        return 1
    if pending < 1:
        set_fault(ctx, MBARRIER_COUNT, site, lane, 1 + pending, 1)
        return 1
    left = (word >> proxy.BYTES_AT) & (2 * proxy.NO_BYTES - 1)
    after = settled(word, pending - 1, expected, left)
    store64(host, after)
    ends = (word ^ after) >> proxy.PHASE_AT & 1
    if load64(ctx + context.SANITIZER):
        release_commit(load64(ctx + context.SANITIZER), load64(commit + THREAD), place)
        if ends:
            finish_mbarrier_phase(load64(ctx + context.SANITIZER), place)
    return int(ends)
