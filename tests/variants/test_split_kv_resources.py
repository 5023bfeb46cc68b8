"""What the kernels of split-kv, unified-max and lean take of a GPU, as ptxas says: what keeps an H200's memory busy."""

from __future__ import annotations

import pytest

from harness.compilers.ptxas import find_ptxas
from harness.emulator.memory.residency import residency
from harness.model.discovery import discover
from harness.operations.attention.problem import Problem
from harness.studies.show.kernel_listing import list_kernels
from harness.support.gpu_data_sheets import gpu
from variants._mma import splits
from variants._mma.equal_runs import BLOCKS_PER_SM

H200 = gpu("h200")
LATENCY_SECONDS = 1e-6
"""Of memory that is busy; about half of it where nothing else is read."""
BUILDS = [(7, "bfloat16"), (64, "bfloat16"), (96, "float16"), (128, "float16"), (128, "bfloat16"), (129, "float16")]


@pytest.mark.thorough
@pytest.mark.parametrize(("head_dim", "dtype"), [*BUILDS, (192, "bfloat16"), (256, "bfloat16")])
@pytest.mark.parametrize("name", ["split-kv-cupy", "unified-max-cupy", "lean-cupy"])
def test_nothing_spills_and_the_planned_blocks_share_a_multiprocessor(name: str, head_dim: int, dtype: str):
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    problem = Problem(heads=8, kv_heads=2, q_len=1, kv_len=2048, head_dim=head_dim, dtype=dtype)
    for listing in list_kernels(discover().registry.get(name), problem, "sm_90"):
        used = listing.resources
        assert used is not None
        assert (used.spill_store_bytes, used.spill_load_bytes, used.stack_bytes) == (0, 0, 0)
        if listing.launch.kernel_name in ("split_kv", "unified_max", "lean"):
            threads, shared_bytes = listing.launch.block[0], used.shared_bytes + listing.launch.shared_bytes
            found = residency(H200.multiprocessor, threads, used.registers, shared_bytes)
            assert found.blocks == (BLOCKS_PER_SM if name == "lean-cupy" else splits.blocks_per_sm(head_dim))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_enough_is_on_its_way_to_keep_memory_busy(head_dim: int):
    # Of each warp's slots one is read while the others are filled. Rows of 64 and 128 elements fill theirs.
    slots, warps = splits.slots(head_dim), splits.WARPS
    under_way = splits.blocks_per_sm(head_dim) * warps * (slots - 1) * splits.BC * head_dim * 2
    assert under_way >= 2 * H200.memory_bytes_per_s * LATENCY_SECONDS / H200.multiprocessors
    # One block alone, where a problem has few: at least as much as memory takes that is not busy.
    alone = warps * (slots - 1) * splits.BC * head_dim * 2
    assert alone >= H200.memory_bytes_per_s * LATENCY_SECONDS / H200.multiprocessors
