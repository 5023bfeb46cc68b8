"""PTX of a hand for clusters, beside `sample_ptx`: every way in which two blocks reach each other."""

from __future__ import annotations

ENTRY = "pair"

TEXT = """.version 8.4
.target sm_90
.address_size 64

.shared .align 128 .b8 tile[1280];
.shared .align 8 .b64 bars[2];

.visible .entry pair(
    .param .u64 .ptr .global .align 16 x,
    .param .u64 y,
    .param .u32 n
)
.maxntid 64, 1, 1
.reqnctapercluster 2, 1, 1
{
    .reg .pred %p<8>;
    .reg .b16 %h<4>;
    .reg .b32 %r<40>;
    .reg .b64 %rd<20>;

    .loc 1 10 1
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %cluster_ctarank;
    mov.u32 %r3, %cluster_nctarank;
    mov.pred %p7, %is_explicit_cluster;
    xor.b32 %r4, %r2, 1;
    setp.ne.u32 %p1, %r1, 0;
    mov.u32 %r5, tile;
    shl.b32 %r6, %r1, 2;
    add.s32 %r7, %r5, %r6;
    mapa.shared::cluster.u32 %r8, %r7, %r4;
    mapa.shared::cluster.u32 %r9, bars, %r4;
    mapa.shared::cluster.u32 %r10, bars + 8, %r4;
    cvt.u64.u32 %rd3, %r7;
    cvta.shared.u64 %rd4, %rd3;
    mapa.u64 %rd5, %rd4, %r4;
    getctarank.u64 %r11, %rd5;
    getctarank.shared::cluster.u32 %r12, %r8;
    st.shared.b32 [%r7], %r1;
    st.shared.b32 [%r7+256], %r1;
    st.shared.b32 [%r7+512], %r2;
    st.shared.b32 [%r7+768], 0;
    st.shared.b32 [%r7+1024], %r1;
    @%p1 bra $L_ready;
    mbarrier.init.shared::cta.b64 [bars], 2;
    mbarrier.init.shared::cta.b64 [bars+8], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 %rd6, [bars+8], 656;
    fence.mbarrier_init.release.cluster;
$L_ready:
    fence.proxy.async.shared::cta;
    .loc 1 11 5
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    .loc 1 12 5
    ld.shared::cluster.u32 %r13, [%r8];
    ld.u32 %r14, [%rd5];
    st.shared::cluster.b32 [%r8+512], %r14;
    atom.shared::cluster.add.u32 %r15, [%r8+768], %r13;
    red.relaxed.cluster.shared::cluster.max.u32 [%r8+768], %r1;
    isspacep.shared::cluster %p2, %rd5;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r8+256], %r1, [%r10];
    red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r8+256], %r2, [%r10];
    @%p1 bra $L_sent;
    mapa.shared::cluster.u32 %r16, tile, %r4;
    mov.u32 %r17, tile;
    mov.u32 %r18, bars;
    mov.b16 %h1, 3;
    add.s32 %r19, %r18, 8;
    cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r16], [%r17+1024], 128, [%r10];
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r16+128], [%rd1], 16, [%r10];
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r9];
    mbarrier.arrive.shared::cta.b64 %rd7, [bars];
$L_sent:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [bars], 0;
    @!%p3 bra $L_sent;
$L_came:
    mbarrier.try_wait.parity.shared::cta.b64 %p4, [bars+8], 0;
    @!%p4 bra $L_came;
    .loc 1 13 5
    ld.shared.u32 %r20, [%r7];
    barrier.cluster.arrive.relaxed;
    add.s32 %r21, %r20, %r15;
    barrier.cluster.wait;
    mul.wide.u32 %rd8, %r1, 4;
    add.s64 %rd9, %rd2, %rd8;
    st.global.u32 [%rd9], %r21;
    ret;
}
.file 1 "pair.cu"
"""
