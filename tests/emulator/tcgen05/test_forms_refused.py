"""Forms of `tcgen05` that the emulator does not have, or that do not exist: errors that name the opcode and the line.

They are refused when the kernel is compiled, before LLVM sees it.
"""

from __future__ import annotations

import pytest

from harness.emulator.native.kernel_cache import native_kernel
from harness.support.errors import SandboxError

KERNEL = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k() {
.reg .b32 d, form, r0, r1, r2; .reg .b64 a, b; .reg .pred p;
mov.u32 d, 0; mov.u32 form, 0; mov.u64 a, 0; mov.u64 b, 0; setp.eq.u32 p, d, d;
FORM;
ret; }"""
LINE = 7

MISSING = [
    "tcgen05.mma.cta_group::1.kind::f16.ashift [d], [d], b, form, p",
    "tcgen05.mma.ws.cta_group::1.kind::f16 [d], a, b, form, p, a",
    "tcgen05.mma.sp.cta_group::1.kind::f16 [d], a, b, [d], form, p",
    "tcgen05.mma.ws.sp.cta_group::1.kind::i8 [d], a, b, [d], form, p",
    "tcgen05.mma.sp.cta_group::1.kind::mxf8f6f4.block_scale [d], a, b, [d], form, [d], [d], p",
    "tcgen05.mma.sp.cta_group::1.kind::mxf4nvf4.block_scale.block16 [d], a, b, [d], form, [d], [d], p",
    "tcgen05.mma.sp.cta_group::1.kind::mxf4.block_scale.block32 [d], a, b, [d], form, [d], [d], p",
    "tcgen05.ld.red.sync.aligned.32x32b.x2.min.u32 {r0, r1}, r2, [d]",
]
"""They are in the PTX ISA."""
WRONG = [
    "tcgen05.cp.cta_group::1.64x128b [d], a",
    "tcgen05.cp.cta_group::1.128x256b.warpx4 [d], a",
    "tcgen05.cp.128x256b [d], a",
    "tcgen05.shift.cta_group::1 [d]",
    "tcgen05.ld.sync.aligned.32x32b.x1.b32 {r0, r1}, [d]",
    "tcgen05.ld.sync.aligned.16x128b.x1.b32 {r0}, [d]",
    "tcgen05.ld.sync.aligned.32x32b.x3.b32 {r0, r1, r2}, [d]",
    "tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {r0}, [d]",
    "tcgen05.ld.sync.aligned.32x32b.x1.unpack::16b.b32 {r0}, [d]",
    "tcgen05.st.sync.aligned.32x32b.x1.pack::16b.b32 [d], {r0}",
    "tcgen05.ld.aligned.32x32b.x1.b32 {r0}, [d]",
    "tcgen05.wait::mma.sync.aligned",
    "tcgen05.fence::before",
    "tcgen05.alloc.sync.aligned.shared::cta.b32 [d], 32",
    "tcgen05.alloc.cta_group::3.sync.aligned.shared::cta.b32 [d], 32",
    "tcgen05.commit.cta_group::1.b64 [d]",
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.multicast::cluster.b64 [d]",
    "tcgen05.mma.cta_group::1.kind::f16 [d], a, b, form, p, 16",
    "tcgen05.mma.cta_group::1.kind::f8f6f4 [d], a, b, form, p, 1",
    "tcgen05.mma.cta_group::1.kind::i8 [d], a, b, form, p, 1",
    "tcgen05.mma.cta_group::1.kind::f16 [d], a, b, form, {r0, r1, r2}, p",
    "tcgen05.mma.cta_group::2.kind::f16 [d], a, b, form, {r0, r0, r0, r0}, p",
    "tcgen05.mma.ws.cta_group::2.kind::f16 [d], a, b, form, p",
    "tcgen05.mma.ws.cta_group::1.kind::f16.collector::a::fill [d], a, b, form, p",
    "tcgen05.mma.cta_group::1.kind::f16.collector::b0::fill [d], a, b, form, p",
    "tcgen05.mma.cta_group::1.kind::f64 [d], a, b, form, p",
    "tcgen05.cp.cta_group::1.128x256b.b6x16_p32 [d], a",
    "tcgen05.cp.cta_group::1.128x256b.b8x16 [d], a",
    "tcgen05.mma.cta_group::1.kind::mxf8f6f4 [d], a, b, form, [d], [d], p",
    "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [d], a, b, form, p",
    "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [d], a, b, form, d, d, p",
    "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [d], a, b, form, [d], [d], p, 1",
    "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [d], a, b, form, [d], [d], {r0, r0, r0, r0}, p",
    "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::2X [d], a, b, form, [d], [d], p",
    "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block16 [d], a, b, form, [d], [d], p",
    "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.scale_vec::4X [d], a, b, form, [d], [d], p",
    "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale [d], a, b, form, [d], [d], p",
    "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::1X [d], a, b, form, [d], [d], p",
    "tcgen05.mma.cta_group::1.kind::f8f6f4.block_scale [d], a, b, form, [d], [d], p",
    "tcgen05.mma.cta_group::1.kind::f8f6f4.block32 [d], a, b, form, p",
    "tcgen05.mma.ws.cta_group::1.kind::mxf8f6f4.block_scale [d], a, b, form, [d], [d], p",
]
"""They are not, or not with these operands."""


@pytest.mark.parametrize("form", [*MISSING, *WRONG])
def test_an_error_with_a_line(form: str):
    with pytest.raises(SandboxError) as caught:
        native_kernel(KERNEL.replace("FORM", form), "k")
    told = str(caught.value)
    assert form.split()[0] in told and f"line {LINE}" in told, told


COLLECTORS = [
    *(f"tcgen05.mma.cta_group::1.kind::f16.collector::a::{use}" for use in ("fill", "use", "lastuse", "discard")),
    *(f"tcgen05.mma.ws.cta_group::1.kind::f16.collector::b{i}::fill" for i in range(4)),
]


FAMILY = [
    "tcgen05.mma.cta_group::1.kind::i8 [d], a, b, form, p",
    "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [d], a, b, form, [d], [d], p",
]
"""They need `sm_100a`."""


@pytest.mark.parametrize("form", FAMILY)
def test_forms_that_the_family_does_not_have(form: str):
    source = KERNEL.replace("FORM", form).replace("sm_100a", "sm_100f")
    with pytest.raises(SandboxError, match=f"line {LINE}.*it needs '.target sm_100a'"):
        native_kernel(source, "k")


def test_collector_buffers_are_hints():
    """They allow to keep a factor, and change nothing."""
    native_kernel(KERNEL.replace("FORM", ";\n".join(f"{form} [d], a, b, form, p" for form in COLLECTORS)), "k")
