"""Runtime functions for kernels with `tcgen05`; a separate object file."""

from __future__ import annotations

from collections.abc import Callable

from harness.emulator.abi import context
from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.memory.async_proxy import drop_async
from harness.emulator.memory.bulk_copies import land_left_stores
from harness.emulator.memory.tensor_memory.accesses import load_tensor, store_tensor
from harness.emulator.memory.tensor_memory.allocation import (
    begin_allocation,
    free_tensor,
    relinquish_tensor,
    require_freed,
    tensor_warp_waits,
)
from harness.emulator.memory.tensor_memory.cells import begin_memory, memory_of, state_of, wait_for_tensor
from harness.emulator.memory.tensor_memory.commits import land_commits
from harness.emulator.memory.tensor_memory.operations import (
    issue_tensor_commit,
    issue_tensor_copy,
    issue_tensor_product,
    issue_tensor_shift,
)


def begin_tensor_cluster(ctx: int) -> int:
    """Reset the state of asynchronous operations and of tensor memory when a cluster begins. Returns 0."""
    drop_async(ctx)
    state = state_of(ctx)
    store64(state + tensor.HEAD, load64(state + tensor.TAIL))
    for warp in range(load64(ctx + context.CLUSTER_WARPS)):
        store64(load64(state + tensor.WAITS) + 16 * warp, 0)
        store64(load64(state + tensor.WAITS) + 16 * warp + 8, 0)
    for rank in range(load64(ctx + context.CLUSTER_SIZE)):
        begin_memory(memory_of(ctx, rank))
    return 0


def end_tensor_block(ctx: int) -> int:
    """Complete what a block that has ended left in flight, and require that its tensor memory is freed. Returns 0."""
    land_left_stores(ctx)
    require_freed(ctx)
    return 0


EXPORTS: dict[str, Callable[..., int]] = {
    function.__name__: function
    for function in (
        begin_allocation, free_tensor, relinquish_tensor, load_tensor, store_tensor, wait_for_tensor,
        issue_tensor_product, issue_tensor_copy, issue_tensor_shift, issue_tensor_commit, tensor_warp_waits,
        land_commits, begin_tensor_cluster, end_tensor_block,
    )
}  # fmt: skip
"""Functions by name, as in `runtime.EXPORTS`."""
