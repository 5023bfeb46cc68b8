"""PTX of bulk copies: boxes of tensors one after the other, and runs of bytes."""

from __future__ import annotations

from scripts.recording.opcode_kernel import HEADER

TILE_BYTES = 32768
_REGISTERS = f"""
.shared .align 1024 .b8 tile[{TILE_BYTES}]; .shared .align 8 .b64 bar;
.reg .b64 memory, coordinates, x, y, map, token, q, step;
.reg .b32 bytes, count, box, boxes, place, tid, i, s, w<4>, c<5>, parity; .reg .pred more, first, done;
"""


def _moved(to_shared: bool) -> str:
    """All of `tile` from `memory`, or to it, in pieces of 16 bytes."""
    words = "{w0, w1, w2, w3}"
    move = f"ld.global.v4.b32 {words}, [q]; st.shared.v4.b32 [s], {words};"
    if not to_shared:
        move = f"ld.shared.v4.b32 {words}, [s]; st.global.v4.b32 [q], {words};"
    return f"""
    shl.b32 i, tid, 4;
    move: setp.ge.u32 more, i, bytes; @more bra moved;
    add.u32 s, place, i; cvt.u64.u32 q, i; add.u64 q, q, memory;
    {move}
    add.u32 i, i, 512; bra move;
    moved: bar.sync 0;"""


def boxes(rank: int, action: str) -> str:
    """Of `load`, `store` or the operation of a reduction: a block of 32 takes every so-many-th box.

    Buffers: the tensor, the boxes as they lie in shared memory, their coordinates; then the map, bytes of a box, and
    how many boxes there are.
    """
    names = [f"c{i}" for i in range(rank)]
    corner = f"{{{', '.join(names)}}}"
    if action == "load":
        work = f"""
    @first mbarrier.arrive.expect_tx.shared.b64 token, [bar], bytes;
    @first cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
      [place], [map, {corner}], [bar];
    wait: mbarrier.try_wait.parity.shared.b64 done, [bar], parity; @!done bra wait;
    xor.b32 parity, parity, 1;
    {_moved(to_shared=False)}"""
    else:
        opcode, more = ("cp", "") if action == "store" else ("cp.reduce", f".{action}")
        work = f"""{_moved(to_shared=True)}
    fence.proxy.async.shared::cta; bar.sync 0;
    @first {opcode}.async.bulk.tensor.{rank}d.global.shared::cta{more}.tile.bulk_group [map, {corner}], [place];
    @first cp.async.bulk.commit_group;
    @first cp.async.bulk.wait_group 0;
    bar.sync 0;"""
    return f"""{HEADER}
.visible .entry kernel(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .align 64 .b8 p3[128],
  .param .u32 p4, .param .u32 p5) {{{_REGISTERS}
    ld.param.u64 memory, [p1]; ld.param.u64 coordinates, [p2]; ld.param.u32 bytes, [p4]; ld.param.u32 boxes, [p5];
    cvta.to.global.u64 memory, memory; cvta.to.global.u64 coordinates, coordinates;
    mov.b64 map, p3; cvta.param.u64 map, map;
    mov.u32 place, tile; mov.u32 tid, %tid.x; mov.u32 parity, 0; setp.eq.u32 first, tid, 0;
    @first mbarrier.init.shared.b64 [bar], 1;
    @first fence.mbarrier_init.release.cluster;
    bar.sync 0;
    mov.u32 box, %ctaid.x; mul.wide.u32 q, box, bytes; add.u64 memory, memory, q;
    mul.wide.u32 q, box, {4 * rank}; add.u64 coordinates, coordinates, q; mov.u32 count, %nctaid.x;
    next: setp.ge.u32 more, box, boxes; @more bra end;
    {" ".join(f"ld.global.b32 c{i}, [coordinates+{4 * i}];" for i in range(rank))}{work}
    mul.wide.u32 q, count, bytes; add.u64 memory, memory, q;
    mul.wide.u32 q, count, {4 * rank}; add.u64 coordinates, coordinates, q;
    add.u32 box, box, count; bra next;
    end: ret; }}"""


def runs(copy: str, hint: bool = False) -> str:
    """x comes in a bulk copy and goes to y as `copy` has it, `cp` or a reduction; with a hint, by a cache policy.

    Buffers: x and y; then how many bytes.
    """
    policy, word = (", policy", ".L2::cache_hint") if hint else ("", "")
    opcode, more = ("cp", "") if copy == "cp" else ("cp.reduce", f".{copy}")
    return f"""{HEADER}
.visible .entry kernel(.param .u64 p0, .param .u64 p1, .param .u32 p2) {{{_REGISTERS} .reg .b64 policy;
    ld.param.u64 x, [p0]; ld.param.u64 y, [p1]; ld.param.u32 bytes, [p2];
    cvta.to.global.u64 x, x; cvta.to.global.u64 y, y;
    createpolicy.fractional.L2::evict_first.b64 policy, 1.0;
    mov.u32 place, tile; mov.u32 tid, %tid.x; setp.ne.u32 more, tid, 0; @more bra end;
    mbarrier.init.shared.b64 [bar], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 token, [bar], bytes;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{word} [place], [x], bytes, [bar]{policy};
    wait: mbarrier.try_wait.parity.shared.b64 done, [bar], 0; @!done bra wait;
    {opcode}.async.bulk.global.shared::cta.bulk_group{word}{more} [y], [place], bytes{policy};
    cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0;
    end: ret; }}"""
