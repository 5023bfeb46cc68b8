"""Runtime functions for kernels with mbarriers, bulk copies or warpgroup products; a separate object file."""

from __future__ import annotations

from collections.abc import Callable

from harness.emulator.memory.async_stores import issue_value
from harness.emulator.memory.bulk_copies import commit_bulk, drop_bulk, issue_bulk, land_left_stores, wait_for_bulk
from harness.emulator.memory.mbarriers import mbarrier_arrive, mbarrier_init, mbarrier_inval, mbarrier_wait
from harness.emulator.memory.warpgroup_products import (
    commit_products,
    drop_products,
    issue_product,
    warpgroup_arrives,
    watch_accumulator,
    watch_fragment,
)
from harness.emulator.sanitizer.product_registers import fence_registers


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
        fence_registers, drop_async, land_left_stores,
    )
}  # fmt: skip
"""Functions by name, as in `runtime.EXPORTS`."""
