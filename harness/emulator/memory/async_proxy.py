"""Runtime functions for kernels with mbarriers, bulk copies or warpgroup products; a separate object file."""

from __future__ import annotations

from collections.abc import Callable

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import layout as at
from harness.emulator.abi.cluster_memory import rank_of_place
from harness.emulator.abi.context import CLUSTER_RANK, SANITIZER
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import load32, load64, store32, store64
from harness.emulator.memory.bulk_copies import (
    barrier_of,
    begin_copy,
    checked_place,
    commit_bulk,
    drop_bulk,
    issue_bulk,
    land_left_stores,
    queue_copy,
    wait_for_bulk,
)
from harness.emulator.memory.launch_control import try_cancel
from harness.emulator.memory.mbarriers import mbarrier_arrive, mbarrier_init, mbarrier_inval, mbarrier_wait
from harness.emulator.memory.tensor_map_fields import replace_field, translate_map
from harness.emulator.memory.warpgroup_products import (
    commit_products,
    drop_products,
    issue_product,
    warpgroup_arrives,
    watch_accumulator,
    watch_fragment,
)
from harness.emulator.sanitizer.clock_words import tick
from harness.emulator.sanitizer.product_registers import fence_registers

NOT_REMOTE = at.FAULT["own block"]
BARRIERS, VALUES = at.HOSTS, at.DATA
"""Where generated code stores each lane's mbarrier, 8 bytes, and its values, one row of 32 lanes each."""


# st.async and red.async (PTX ISA 9.7.9.12, 9.7.13.7): asynchronous stores to another block's shared memory. They are in
# flight like bulk copies, and complete with them: when a warp of that block waits for the mbarrier that counts their
# bytes.
def issue_value(ctx: int, warp: int, site: int, mask: int, element: int, count: int, reduction: int) -> int:
    """Queue each active lane's `count` values of `element` bytes, 4 or 8. Returns 1 on a fault, else 0.

    `reduction` is the address of the function that combines them with the old values; 0 to replace these.
    """
    size = element * count
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        copy = begin_copy(ctx, site, lane)
        if copy == 0:
            return 1
        address = load64(warp + at.ADDRESSES + 8 * lane)
        place = checked_place(ctx, site, lane, address, size, size, 0)
        if place < 0:
            return 1
        if reduction and rank_of_place(ctx, place) == load64(ctx + CLUSTER_RANK):
            set_fault(ctx, NOT_REMOTE, site, lane, address, size)
            return 1
        barrier = barrier_of(ctx, site, lane, load64(warp + BARRIERS + 8 * lane), place, 0)
        if barrier < 0:
            return 1
        store64(copy + proxy.SOURCE, proxy.FROM_REGISTERS)
        store64(copy + proxy.STORES, 0)
        store64(copy + proxy.RANK, 0)
        store64(copy + proxy.REDUCTION, reduction)
        store64(copy + proxy.BYTES, size)
        for word in range(0, size, 4):
            row = VALUES + 32 * element * (word // element)
            value = load32(warp + row + element * lane + word % element)
            store32(copy + proxy.COORDINATES + word, value)
        if load64(ctx + SANITIZER):
            store64(copy + proxy.ISSUED, tick(load64(ctx + SANITIZER)))
        if queue_copy(ctx, copy, lane, place, barrier):
            return 1
    return 0


def drop_async(ctx: int) -> int:
    """Reset the state when a cluster begins. Returns 0."""
    drop_bulk(ctx)
    drop_products(ctx)
    return 0


EXPORTS: dict[str, Callable[..., int]] = {
    function.__name__: function
    for function in (
        mbarrier_init, mbarrier_inval, mbarrier_arrive, mbarrier_wait, issue_bulk, issue_value, commit_bulk,
        wait_for_bulk, issue_product, commit_products, warpgroup_arrives, watch_accumulator, watch_fragment,
        fence_registers, drop_async, land_left_stores, translate_map, replace_field, try_cancel,
    )
}  # fmt: skip
"""Functions by name, as in `runtime.EXPORTS`."""
