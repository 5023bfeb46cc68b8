"""Clusters, opcode by opcode: special registers, addresses, distributed shared memory, and what arrives at mbarriers.

Each kernel asks for its cluster itself (`.reqnctapercluster`), so that a GPU launches it as it is.
"""

from __future__ import annotations

import numpy as np
import pytest
from single_opcode import run_body

from harness.support.errors import CompileError, KernelFault

BARRIER = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
BLOCK = "mov.u32 r30, %ctaid.x; mov.u32 r29, %nctaid.x; mov.u32 r28, %ctaid.y; mad.lo.u32 r31, r28, r29, r30;"
"""r31: the number of the block."""
THREAD = "mov.u32 r30, %ntid.x; mad.lo.u32 r31, r31, r30, tid;"
"""r31: the number of the thread, behind `BLOCK`."""


def store(register: str, count: int = 1, place: int = 0) -> str:
    """One of `count` results of the thread or block r31 goes to y."""
    return f"mad.wide.u32 q31, r31, {4 * count}, y; st.global.u32 [q31+{4 * place}], {register};"


def test_special_registers() -> None:
    """A grid of 4 x 4 x 2 in clusters of 2 x 1 x 2: every block knows where it is."""
    names = ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
    registers = [f"%{name}.{axis}" for name in names for axis in "xyz"] + ["%cluster_ctarank", "%cluster_nctarank"]
    body = f"{BLOCK} mov.u32 r27, %ctaid.z; mov.u32 r26, %nctaid.y; mul.lo.u32 r26, r26, r29;"
    body += "mad.lo.u32 r31, r27, r26, r31;"
    for place, name in enumerate(registers):
        body += f"mov.u32 r0, {name}; {store('r0', 15, place)}"
    body += f"mov.pred p0, %is_explicit_cluster; selp.u32 r0, 1, 0, p0; {store('r0', 15, 14)}"
    y = np.zeros((2, 4, 4, 15), np.uint32)
    run_body(body, {"y": y}, directives=".reqnctapercluster 2, 1, 2", grid=(4, 4, 2), block=1)
    for z, row, x in np.ndindex(2, 4, 4):
        rank = x % 2 + 2 * z
        expected = [x // 2, row, 0, 2, 4, 1, x % 2, 0, z, 2, 1, 2, rank, 4, 1]
        assert y[z, row, x].tolist() == expected, (z, row, x)
    alone = np.zeros((3, 15), np.uint32)
    run_body(body, {"y": alone}, grid=3, block=1)
    assert alone.tolist() == [[x, 0, 0, 3, 1, 1, 0, 0, 0, 1, 1, 1, 0, 1, 0] for x in range(3)]


def test_addresses_name_their_block() -> None:
    """mapa and getctarank, of 32-bit and generic addresses; a block's own address mapped to itself is the same."""
    y = np.zeros((4, 8), np.uint32)
    run_body(
        f"""{BLOCK}
        mov.u32 r0, %cluster_ctarank; xor.b32 r1, r0, 1;
        mov.u32 r2, s; cvta.shared.u64 q0, q1; mov.u64 q1, s; cvta.shared.u64 q0, q1;
        mapa.shared::cluster.u32 r3, s + 4, r1; getctarank.shared::cluster.u32 r4, r3; {store("r4", 8, 0)}
        getctarank.shared::cluster.u32 r4, s; {store("r4", 8, 1)}
        mapa.u64 q2, q0, r1; getctarank.u64 r4, q2; {store("r4", 8, 2)}
        getctarank.u64 r4, q0; {store("r4", 8, 3)}
        mapa.shared::cluster.u32 r5, r2, r0; setp.eq.u32 p0, r5, r2; selp.u32 r5, 1, 0, p0; {store("r5", 8, 4)}
        isspacep.shared p1, q2; selp.u32 r5, 1, 0, p1; {store("r5", 8, 5)}
        isspacep.shared::cluster p1, q2; selp.u32 r5, 1, 0, p1; {store("r5", 8, 6)}
        isspacep.shared::cta p1, q0; selp.u32 r5, 1, 0, p1; {store("r5", 8, 7)}
        """,
        {"y": y},
        ".shared .align 4 .b32 s[2];",
        ".reqnctapercluster 2",
        grid=4,
        block=1,
    )
    assert y.tolist() == [[1 - rank, rank, 1 - rank, rank, 1, 0, 1, 1] for rank in (0, 1, 0, 1)]


def test_loads_stores_and_atomics_reach_the_next_block() -> None:
    """By 32-bit and by generic addresses, of one element and of two."""
    y = np.zeros((3, 32, 4), np.uint32)
    run_body(
        f"""{BLOCK} {THREAD}
        mov.u32 r0, %cluster_ctarank; add.u32 r1, r0, 1; setp.eq.u32 p0, r1, 3; selp.u32 r1, 0, r1, p0;
        mov.u32 r2, s; mad.lo.u32 r3, tid, 16, r2; mapa.shared::cluster.u32 r4, r3, r1;
        cvt.u64.u32 q0, r3; cvta.shared.u64 q1, q0; mapa.u64 q2, q1, r1;
        mov.u32 r5, 0; st.shared.v4.b32 [r3], {{r5, r5, r5, r5}};
        {BARRIER}
        mad.lo.u32 r6, r0, 100, tid; add.u32 r7, r6, 1000;
        st.shared::cluster.v2.b32 [r4], {{r6, r7}};
        atom.shared::cluster.add.u32 r8, [r4+8], 5; red.relaxed.cluster.shared::cluster.add.u32 [r4+8], r0;
        atom.add.u32 r8, [q2+12], r6; st.u32 [q2+4], r7;
        {BARRIER}
        ld.shared.v2.u32 {{r9, r10}}, [r3]; ld.u32 r11, [q1+8];
        ld.shared::cluster.u32 r12, [r4+12];
        {store("r9", 4, 0)} {store("r10", 4, 1)} {store("r11", 4, 2)} {store("r12", 4, 3)}
        {BARRIER}
        """,
        {"y": y},
        ".shared .align 16 .b32 s[128];",
        ".reqnctapercluster 3",
        grid=3,
        block=32,
    )
    lanes = np.arange(32)
    for rank in range(3):
        before = (rank + 2) % 3
        expected = [100 * before + lanes, 1000 + 100 * before + lanes, 0 * lanes + 5 + before, 100 * rank + lanes]
        assert np.array_equal(y[rank].T, expected), rank


ARRIVE = """
    mov.u32 r0, %cluster_ctarank; mov.u32 r2, bar; mapa.shared::cluster.u32 r3, r2, 0;
    cvt.u64.u32 q0, r3; cvta.shared.u64 q1, q0;
    setp.ne.u32 p0, tid, 0; setp.ne.u32 p1, r0, 0;
    @!p0 mbarrier.init.shared.b64 [bar], COUNT; fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;
    @p1 bra others;
    wait: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p2, [bar], 0; @!p2 bra wait;
    mov.u32 r4, 7; st.global.u32 [y], r4; bra.uni done;
    others: @p0 bra done;
    FORM
    done: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""


@pytest.mark.parametrize(
    ("count", "form"),
    [
        (3, "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r3];"),
        (6, "mbarrier.arrive.shared::cluster.b64 _, [r3], 2;"),
        (3, "mbarrier.arrive.release.cluster.b64 _, [q1];"),
        (3, "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [r3], 16;"
            "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [r3], 16;"),
        (3, "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [r3], 8;"
            "mbarrier.arrive_drop.shared::cluster.b64 _, [r3];"
            "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [r3], 8;"),
    ],
)  # fmt: skip
def test_arrivals_at_another_blocks_mbarrier(count: int, form: str) -> None:
    y = np.zeros(1, np.uint32)
    body = ARRIVE.replace("COUNT", str(count)).replace("FORM", form)
    run_body(body, {"y": y}, ".shared .align 8 .b64 bar;", ".reqnctapercluster 4", grid=4, block=64)
    assert y[0] == 7
    body = ARRIVE.replace("COUNT", str(count + 1)).replace("FORM", form)
    with pytest.raises(KernelFault, match=r"warps 0-1 of block \(0, 0, 0\) wait at the mbarrier .* 1 arrivals and 0"):
        run_body(body, {"y": y}, ".shared .align 8 .b64 bar;", ".reqnctapercluster 4", grid=4, block=64)


ASYNCHRONOUS = """
    mov.u32 r0, %cluster_ctarank; xor.b32 r1, r0, 1; setp.ne.u32 p0, tid, 0;
    mov.u32 r2, s; mapa.shared::cluster.u32 r3, r2, r1; mov.u32 r4, bar; mapa.shared::cluster.u32 r5, r4, r1;
    cvt.u64.u32 q0, r3; cvta.shared.u64 q1, q0; cvt.u64.u32 q2, r5; cvta.shared.u64 q3, q2;
    mad.lo.u32 r6, tid, 4, r2; mad.lo.u32 r7, r0, 100, tid; st.shared.b32 [r6], r7; st.shared.b32 [r6+128], r7;
    @!p0 mbarrier.init.shared.b64 [bar], 1;
    @!p0 mbarrier.arrive.expect_tx.shared.b64 _, [bar], BYTES;
    fence.proxy.async.shared::cta;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    FORM
    wait: mbarrier.try_wait.parity.shared.b64 p1, [bar], 0; @!p1 bra wait;
    ld.shared.b32 r9, [r6]; mad.lo.u32 r10, r0, 32, tid; mad.wide.u32 q5, r10, 4, y; st.global.b32 [q5], r9;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""
LANES = np.arange(32)
COMPLETES = "mbarrier::complete_tx::bytes"
BULK = f"async.bulk.shared::cluster.shared::cta.{COMPLETES}"
REDUCTIONS = {
    "add.u32": np.add,
    "min.s32": np.minimum,
    "max.u32": np.maximum,
    "and.b32": np.bitwise_and,
    "or.b32": np.bitwise_or,
    "xor.b32": np.bitwise_xor,
    "inc.u32": lambda old, new: np.where(old >= new, 0, old + 1),
    "dec.u32": lambda old, new: np.where((old == 0) | (old > new), new, old - 1),
}


def every_fourth(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Lane n of eight sends n + 100 times its rank, its rank, the first again, and the rank of the other block."""
    mine, other = new[0] + LANES // 4, (new[0] // 100, old[0] // 100)
    return np.where(LANES % 2 == 0, mine, np.where(LANES % 4 == 1, *other))


LOAD = f"cp.async.bulk.shared::cluster.global.{COMPLETES}"


def half_of_what_is_behind(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """64 bytes of y."""
    return np.where(LANES < 16, 1000 + LANES, old)


FORMS = {
    f"st.async.shared::cluster.{COMPLETES}.b32 [r11], r7, [r5];": (128, lambda old, new: new),
    f"st.async.weak.{COMPLETES}.u32 [q6], r7, [q3];": (128, lambda old, new: new),
    f"@p2 st.async.shared::cluster.{COMPLETES}.v4.b32 [r12], {{r7, r0, r7, r1}}, [r5];": (128, every_fourth),
    f"red.async.relaxed.cluster.{COMPLETES}.add.u32 [q6], r7, [q3];": (128, np.add),
    f"@!p0 {LOAD} [r3], [q7], 64, [r5];": (64, half_of_what_is_behind),
    f"@!p0 {LOAD}.multicast::cluster [r2], [q7], 64, [r4], h1;": (64, half_of_what_is_behind),
    f"@!p0 {LOAD}.multicast::cluster.L2::cache_hint [r2], [q7], 64, [r4], h1, q8;": (64, half_of_what_is_behind),
    f"@!p0 cp.{BULK} [r3], [s+128], 64, [r5];": (64, lambda old, new: np.where(LANES < 16, new, old)),
    f"@!p0 cp.reduce.{BULK}.add.u32 [r3], [s+128], 128, [r5];": (128, np.add),
    **{
        f"red.async.relaxed.cluster.shared::cluster.{COMPLETES}.{form} [r11], r7, [r5];": (128, function)
        for form, function in REDUCTIONS.items()
    },
}
"""Form -> bytes that come, and what is there afterwards, of what was there and what came."""
PLACES = """
    mad.lo.u32 r11, tid, 4, r3; mad.wide.u32 q6, tid, 4, q1; mad.lo.u32 r12, tid, 16, r3; setp.lt.u32 p2, tid, 8;
    add.u64 q7, y, 256; mov.b16 h0, 1; shl.b16 h1, h0, r1; createpolicy.fractional.L2::evict_first.b64 q8, 1.0;
"""


@pytest.mark.parametrize("form", FORMS)
def test_what_goes_to_another_block_on_its_own(form: str) -> None:
    """Two blocks exchange what they have."""
    size, expected = FORMS[form]
    body = ASYNCHRONOUS.replace("BYTES", str(size)).replace("FORM", PLACES + form)
    y = np.zeros((3, 32), np.uint32)
    y[2] = 1000 + LANES
    declared = ".shared .align 16 .b32 s[64]; .shared .align 8 .b64 bar;"
    run_body(body, {"y": y}, declared, ".reqnctapercluster 2", grid=2, block=32)
    for rank in range(2):
        old, new = (np.uint32(100 * r) + LANES.astype(np.uint32) for r in (rank, 1 - rank))
        assert np.array_equal(y[rank], expected(old, new)), (rank, y[rank])


@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        ("mapa.shared::cluster.u32 r1, s, 2; ld.shared::cluster.u32 r2, [r1];", "out of bounds",
         "shared memory of rank 2"),
        ("mapa.shared::cluster.u32 r1, s, -1; ld.shared::cluster.u32 r2, [r1];", "out of bounds", "memory of rank 255"),
        ("mov.u64 q1, s; cvta.shared.u64 q1, q1; mapa.u64 q2, q1, 300; st.u32 [q2], 1;", "out of bounds",
         "of rank 255"),
        ("mapa.shared::cluster.u32 r1, bar, 2; mbarrier.arrive.shared::cluster.b64 _, [r1];", "out of bounds",
         r"shared memory of rank 2 \(mapa\), and ranks of a cluster of 2 begin at 0"),
        ("barrier.cluster.wait;", "cluster barrier", "warp 0 waits at the cluster's barrier without having"),
        ("barrier.cluster.arrive; barrier.cluster.arrive;", "cluster barrier", "the cluster's barrier a second time"),
        ("setp.lt.u32 p0, tid, 7; @p0 bra away; barrier.cluster.arrive; away: mov.u32 r1, 0; add.u32 r1, r1, 1;"
         "st.global.u32 [y], r1;", "divergent barrier", "lanes 0-6 of warp 0 do not reach it"),
        ("mapa.shared::cluster.u32 r1, s, 1; ld.shared::cluster.u32 r2, [r1+4096];", "out of bounds",
         r"out-of-bounds load of 4 bytes at byte offset 4,096 of shared memory of block \(1, 0, 0\), which has 256"),
        ("mov.u32 r1, %ctaid.x; setp.ne.u32 p0, r1, 0; mov.u32 r2, s; @p0 st.shared.b32 [r2+256], r1;", "out of bounds",
         r"block \(1, 0, 0\), .* out-of-bounds store of 4 bytes at byte offset 256 of shared memory, which has 256"),
        ("mov.u32 r1, %ctaid.x; setp.ne.u32 p0, r1, 0; mov.u32 r2, s; @p0 st.shared.b32 [r2+-4], r1;", "out of bounds",
         r"block \(1, 0, 0\), .* at byte offset -4 of shared memory, which has 256"),
        ("mapa.shared::cluster.u32 r1, s, 1; ld.shared::cluster.u32 r2, [r1+2];", "misaligned", "byte offset 2 of"),
        ("mapa.shared::cluster.u32 r1, bar, 1; wait: mbarrier.try_wait.shared.b64 p1, [r1], q1;", "out of bounds",
         "memory of its own block"),
        ("mapa.shared::cluster.u32 r1, bar, 1; mbarrier.arrive.shared.b64 q1, [r1];", "out of bounds",
         r"of shared memory of block \(1, 0, 0\)"),
        ("mapa.shared::cluster.u32 r1, s, 1; ld.shared.u32 r2, [r1];", "out of bounds", "memory of its own block"),
        ("mapa.shared::cluster.u32 r1, s, 1; atom.shared.add.u32 r2, [r1], 1;", "out of bounds",
         r"of shared memory of block \(1, 0, 0\); 'atom.shared.add.u32' accesses only the shared memory of its"),
        ("mapa.shared::cluster.u32 r1, bar, 1; mbarrier.arrive.shared::cluster.b64 _, [r1];", "no mbarrier",
         r"there is no mbarrier at byte offset \d+ of shared memory of block \(1, 0, 0\)"),
        ("mbarrier.init.shared.b64 [bar], 1; mov.u32 r1, s; mov.u32 r2, bar;"
         "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [r1], [s], 16, [r2];", "own block",
         "it must be in another block of the cluster"),
        ("mbarrier.init.shared.b64 [bar], 1; mapa.shared::cluster.u32 r1, s, 1; mov.u32 r2, bar;"
         "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [r1], r2, [r2];", "mbarrier elsewhere",
         r"the mbarrier is in block \(0, 0, 0\), but the destination is in block \(1, 0, 0\); both must be in the"),
        ("mbarrier.init.shared.b64 [bar], 1; mov.u32 r1, s; mov.u32 r2, bar; mov.b16 h1, 4;"
         f"cp.async.bulk.shared::cluster.global.{COMPLETES}.multicast::cluster [r1], [y], 16, [r2], h1;",
         "cluster rank", "there is no rank 2 in a cluster of 2"),
        ("mbarrier.init.shared.b64 [bar], 1; mov.u32 r1, s; mov.u32 r2, bar; mov.b16 h1, 2;"
         f"cp.async.bulk.shared::cluster.global.{COMPLETES}.multicast::cluster [r1], [y], 16, [r2], h1;",
         "no mbarrier", r"there is no mbarrier at byte offset 248 of shared memory of block \(1, 0, 0\)"),
        ("mapa.shared::cluster.u32 r1, s, 1; mov.u32 r2, bar;"
         f"cp.async.bulk.shared::cta.global.{COMPLETES} [r1], [y], 16, [r2];", "out of bounds",
         r"of shared memory of block \(1, 0, 0\); .* accesses only the shared memory of its"),
    ],
)  # fmt: skip
def test_misuse_is_a_fault(body: str, kind: str, told: str) -> None:
    declared = ".shared .align 16 .b32 s[62]; .shared .align 8 .b64 bar;"
    with pytest.raises(KernelFault, match=told) as caught:
        run_body(body, {"y": np.zeros(64, np.uint32)}, declared, ".reqnctapercluster 2", grid=2, block=32)
    assert caught.value.kind == kind


def test_an_address_in_a_block_that_the_cluster_lacks_may_be_computed() -> None:
    """Compilers compute the addresses of all lanes, of which only some access them."""
    y = np.zeros((2, 32), np.uint32)
    run_body(
        f"""{BLOCK} {THREAD} mov.u32 r0, %cluster_ctarank; mov.u32 r1, s; mov.u32 r2, %cluster_ctarank;
        setp.eq.u32 p0, tid, 0; @p0 st.shared.b32 [r1], r0; add.u32 r4, r0, 7;
        barrier.cluster.arrive; barrier.cluster.wait;
        mapa.shared::cluster.u32 r3, r1, tid; setp.lt.u32 p1, tid, 2; @p1 ld.shared::cluster.b32 r4, [r3]; {store("r4")}
        barrier.cluster.arrive; barrier.cluster.wait;""",
        {"y": y},
        ".shared .align 4 .b32 s[32];",
        ".reqnctapercluster 2",
        grid=2,
        block=32,
    )
    assert y[:, :2].tolist() == [[0, 1], [0, 1]] and y[:, 2:].tolist() == [[7] * 30, [8] * 30]


def test_a_barrier_under_a_predicate() -> None:
    """Where no lane is there, it is as if it were not."""
    y = np.zeros((2, 32), np.uint32)
    run_body(
        f"""{BLOCK} {THREAD} mov.u32 r0, %cluster_ctarank; setp.eq.u32 p0, r0, 5; setp.lt.u32 p1, r0, 5;
        mov.u32 r1, s; mad.lo.u32 r1, tid, 4, r1; xor.b32 r2, r0, 1; mapa.shared::cluster.u32 r3, r1, r2;
        st.shared.b32 [r1], r0;
        @p0 barrier.cluster.arrive; @p0 barrier.cluster.wait; @p1 barrier.cluster.arrive; @p1 barrier.cluster.wait;
        ld.shared::cluster.b32 r4, [r3]; {store("r4")} {BARRIER}""",
        {"y": y},
        ".shared .align 4 .b32 s[32];",
        ".reqnctapercluster 2",
        grid=2,
        block=32,
    )
    assert y[:, 0].tolist() == [1, 0]


@pytest.mark.parametrize(("directive", "told"), [
    (".reqnctapercluster 0", "it needs one to three numbers of at least 1"),
    (".reqnctapercluster 1, 1, 1, 1", r"'.reqnctapercluster' is given \[1, 1, 1, 1\]"),
    (".maxclusterrank", "it needs one number of at least 1"),
])  # fmt: skip
def test_directives_that_are_broken(directive: str, told: str) -> None:
    with pytest.raises(CompileError, match=told):
        run_body("", {}, directives=directive)
