"""PTX of a hand that uses a bit of everything: what mutations of PTX start from, beside what a compiler wrote."""

from __future__ import annotations

ENTRY = "sampler"

TEXT = """.version 8.0
.target sm_90
.address_size 64

.global .align 16 .b8 table[32] = {1, 2, 3, 4, 0x1F, 255};
.const .align 4 .f32 factors[4] = {0f3F800000, 0f40000000, 1.5, 2.0};
.shared .align 16 .b8 tile[2048];
.extern .shared .align 16 .b8 dynamic[];
.extern .func (.param .b32 result) vprintf (.param .b64 format, .param .b64 values);

.func (.param .b32 result) twice(.param .b32 value)
{
    .reg .b32 %r<3>;
    ld.param.u32 %r1, [value];
    add.s32 %r2, %r1, %r1;
    st.param.b32 [result], %r2;
    ret;
}

.visible .entry sampler(
    .param .u64 .ptr .global .align 16 x,
    .param .u64 y,
    .param .u32 n,
    .param .f32 scale
)
.maxntid 64, 1, 1
{
    .local .align 8 .b8 scratch[64];
    .reg .pred %p<8>;
    .reg .b16 %h<9>;
    .reg .b32 %r<40>;
    .reg .f32 %f<40>;
    .reg .b64 %rd<16>;
    .reg .f64 %d<4>;

    .loc 1 10 1
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.u32 %r1, [n];
    ld.param.f32 %f1, [scale];
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mad.lo.s32 %r5, %r3, %r4, %r2;
    setp.ge.s32 %p1, %r5, %r1;
    @%p1 bra $L_end;
    mul.wide.u32 %rd5, %r5, 4;
    add.s64 %rd6, %rd3, %rd5;
    ld.global.nc.f32 %f2, [%rd6];
    .loc 1 11 5
    and.b32 %r6, %r2, 15;
    shl.b32 %r7, %r6, 4;
    mov.u32 %r8, tile;
    add.u32 %r9, %r8, %r7;
    mov.b32 %r10, %f2;
    st.shared.v4.b32 [%r9], {%r10, %r2, %r3, %r10};
    cp.async.ca.shared.global [%r9+1024], [%rd3], 16;
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.sync 0;
    ld.shared.v2.f32 {%f3, %f4}, [%r9];
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r11, %r12, %r13, %r14}, [%r9];
    mov.f32 %f5, 0f00000000;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
        {%f6, %f7, %f8, %f9}, {%r11, %r12, %r13, %r14}, {%r11, %r12}, {%f5, %f5, %f5, %f5};
    fma.rn.f32 %f10, %f2, %f1, %f6;
    ex2.approx.ftz.f32 %f11, %f10;
    max.f32 %f12, %f11, %f3;
    div.rn.f32 %f13, %f12, 0f40400000;
    shfl.sync.bfly.b32 %r15|%p2, %r10, 1, 31, -1;
    vote.sync.ballot.b32 %r16, %p2, 0xffffffff;
    popc.b32 %r17, %r16;
    bfe.u32 %r18, %r17, 1, 4;
    prmt.b32 %r19, %r18, %r17, 0x3210;
    lop3.b32 %r20, %r19, %r18, %r17, 0xE8;
    selp.b32 %r21, %r20, 7, %p2;
    cvt.rn.f16.f32 %h1, %f13;
    mov.b32 %r22, {%h1, %h1};
    fma.rn.f16x2 %r23, %r22, %r22, %r22;
    cvt.f64.f32 %d1, %f13;
    add.rn.f64 %d2, %d1, 0d3FF0000000000000;
    cvt.rn.f32.f64 %f14, %d2;
    add.cc.u32 %r24, %r20, %r21;
    addc.u32 %r25, %r20, 0;
    mov.u64 %rd7, scratch;
    st.local.u32 [%rd7+8], %r25;
    ld.local.u32 %r26, [scratch+8];
    ld.const.f32 %f15, [factors+4];
    ld.global.u8 %h2, [table+3];
    atom.shared.add.u32 %r27, [%r9], 1;
    red.global.max.u32 [%rd4], %r27;
    redux.sync.add.s32 %r28, %r27, -1;
    mov.u32 %r29, 0;
$L_loop:
    add.u32 %r29, %r29, 1;
    setp.lt.and.u32 %p3|%p4, %r29, 3, %p2;
    @%p3 bra $L_loop;
    {
        .reg .b32 temporary;
        .param .b32 given;
        .param .b32 taken;
        st.param.b32 [given], %r29;
        call.uni (taken), twice, (given);
        ld.param.b32 temporary, [taken];
        mov.b32 %r30, temporary;
    }
    and.b32 %r31, %r30, 1;
    $L_table: .branchtargets $L_even, $L_odd;
    brx.idx %r31, $L_table;
$L_even:
    add.s32 %r32, %r30, 1;
    bra.uni $L_store;
$L_odd:
    sub.s32 %r32, %r30, 1;
$L_store:
    bar.red.popc.u32 %r33, 0, %p4;
    add.s64 %rd8, %rd4, %rd5;
    add.f32 %f16, %f13, %f15;
    @!%p4 st.global.f32 [%rd8], %f16;
$L_end:
    ret;
}
.file 1 "sampler.cu"
"""
