"""Copies of boxes whose mbarrier is in the other block of the destination's pair (`.cta_group::2`)."""

from __future__ import annotations

import numpy as np
import pytest
from single_opcode import run_ptx

from harness.emulator.native.tier import Tier
from harness.model.tensor_map import TensorMap
from harness.support.errors import KernelFault
from scripts.recording.opcode_kernel import HEADER

BLOCKS, COLUMNS = 4, 16
X = TensorMap("x", (COLUMNS, BLOCKS), (4 * COLUMNS,), (COLUMNS, 1), "float32")
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
NO_PEER = 0xFEFFFFFF
"""Clears the lowest bit of a shared address's block: the even block of the pair."""
OWN_ROW = f"and.b32 barrier, barrier, {NO_PEER}; @first {LOAD}.cta_group::2 [place], [map, {{0, rank}}], [barrier];"


def run(copy: str, expected_bytes: int) -> np.ndarray:
    """A cluster of four blocks: each copies a row of x to its `tile`; the even blocks wait. Returns all tiles."""
    x, y = np.arange(BLOCKS * COLUMNS, dtype=np.float32).reshape(BLOCKS, COLUMNS), np.zeros((BLOCKS, 32), np.float32)
    text = f"""{HEADER}
    .visible .entry kernel(.param .u64 p0, .param .u64 p1, .param .align 64 .b8 p2[128]) .reqnctapercluster {BLOCKS} {{
    .shared .align 128 .b32 tile[32]; .shared .align 8 .b64 bar;
    .reg .b64 y, map, q; .reg .b32 tid, rank, place, barrier, odd, value, far;
    .reg .b16 all; .reg .pred first, waits, done;
    ld.param.u64 y, [p1]; mov.b64 map, p2; cvta.param.u64 map, map;
    mov.u32 tid, %tid.x; mov.u32 rank, %cluster_ctarank; mov.u32 place, tile; mov.u32 barrier, bar; mov.b16 all, 15;
    setp.eq.u32 first, tid, 0; and.b32 odd, rank, 1; setp.eq.u32 waits, odd, 0;
    @first mbarrier.init.shared.b64 [bar], 1; @first fence.mbarrier_init.release.cluster;
    @first mbarrier.arrive.expect_tx.shared.b64 _, [bar], {expected_bytes};
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    {copy}
    @!waits bra waited;
    wait: mbarrier.try_wait.parity.shared.b64 done, [bar], 0; @!done bra wait;
    waited: barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    shl.b32 odd, tid, 2; add.u32 place, place, odd; ld.shared.b32 value, [place];
    mad.lo.u32 odd, rank, 32, tid; mad.wide.u32 q, odd, 4, y; st.global.b32 [q], value;
    ret; }}"""
    run_ptx(text, {"x": x, "y": y}, grid=BLOCKS, block=32, scalars=[X], tier=Tier.BASELINE)
    return y[:, :COLUMNS]


def test_both_blocks_of_a_pair_complete_the_even_blocks_mbarrier() -> None:
    rows = np.arange(BLOCKS * COLUMNS, dtype=np.float32).reshape(BLOCKS, COLUMNS)
    np.testing.assert_array_equal(run(OWN_ROW, 2 * 4 * COLUMNS), rows)


def test_a_copy_to_all_blocks_completes_the_mbarriers_of_the_same_parity() -> None:
    """Block 3 copies row 1 to all; the mbarrier that it names is in block 2, so blocks 0 and 2 count it twice."""
    copy = f"""and.b32 barrier, barrier, {NO_PEER}; setp.eq.and.u32 first, rank, 3, first; mov.u32 rank, 1;
    @first {LOAD}.multicast::cluster.cta_group::2 [place], [map, {{0, rank}}], [barrier], all;
    mov.u32 rank, %cluster_ctarank;"""
    np.testing.assert_array_equal(run(copy, 2 * 4 * COLUMNS), np.tile(COLUMNS + np.arange(COLUMNS), (BLOCKS, 1)))


@pytest.mark.parametrize(
    ("form", "away"),
    [("", 1), (".cta_group::1", 1), (".cta_group::2", 2)],
)
def test_an_mbarrier_outside_of_the_pair_is_a_fault(form: str, away: int) -> None:
    copy = f"xor.b32 far, rank, {away}; mapa.shared::cluster.u32 barrier, bar, far;"
    with pytest.raises(KernelFault, match=r"with \.cta_group::2 in one pair") as caught:
        run(f"{copy} @first {LOAD}{form} [place], [map, {{0, rank}}], [barrier];", 4 * COLUMNS)
    assert caught.value.kind == "mbarrier elsewhere"
