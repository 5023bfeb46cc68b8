"""PTX that loads a box of a tensor map, and stores it from all lanes of a warp."""

from __future__ import annotations

MOVE = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry move(.param .align 64 .b8 source[128], .param .align 64 .b8 target[128], .param .u32 step)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .shared .align 1024 .b8 box[512];
    .shared .align 8 .b64 bar;
    mov.b64 %rd0, source;
    cvta.param.u64 %rd0, %rd0;
    mov.b64 %rd1, target;
    cvta.param.u64 %rd1, %rd1;
    ld.param.u32 %r0, [step];
    mov.u32 %r1, %tid.x;
    mul.lo.u32 %r2, %r0, %r1;
    mov.u32 %r3, box;
    mov.u32 %r4, bar;
    mov.u32 %r5, 0;
    setp.ne.u32 %p0, %r1, 0;
    @%p0 bra $wait;
    mbarrier.init.shared::cta.b64 [%r4], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 512;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd0, {%r5, %r5}], [%r4];
$wait:
    bar.sync 0;
$again:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r4], 0;
    @!%p1 bra $again;
    cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r5, %r2}], [%r3];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    ret;
}
"""
"""Lane t stores the box of 8 rows of 16 float32 to row `step` * t of the target."""
