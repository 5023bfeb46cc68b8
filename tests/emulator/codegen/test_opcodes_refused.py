"""What is not supported says so, with opcode and line; what is accepted is code that LLVM takes. Nothing in between."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import llvmlite.binding as llvm
import pytest
from single_opcode import HEADER

from harness.emulator.codegen.emitters import emitter_for, supported_opcodes
from harness.emulator.codegen.kernel import generate
from harness.emulator.codegen.storage import Registers, Storage
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.blocks import Block
from harness.ptx.instructions import Instruction
from harness.ptx.parsing.parser import parse
from harness.ptx.types import TYPES, PtxType
from harness.support.errors import UnsupportedInstruction
from tests.emulator.codegen.opcode_forms import MODIFIERS, SHAPES

REGISTERS = ".reg .b64 q<9>; .reg .b32 r<9>; .reg .b16 h<9>; .reg .pred p<9>; .reg .b128 w<9>;"


def kernel(text: str) -> str:
    needs_blackwell = "tcgen05" in text or "clusterlaunchcontrol" in text
    header = HEADER.replace("sm_90", "sm_100a") if needs_blackwell else HEADER
    return f"{header}.visible .entry kernel()\n{{ {REGISTERS}\n{text}\nret; }}"


def shapes() -> tuple[dict[str, PtxType], list[Instruction]]:
    """The registers, and an instruction with the operands of each shape."""
    function = parse(kernel("\n".join(f"nothing {shape};" for shape in SHAPES))).functions["kernel"]
    return {**function.registers, "%carry": TYPES["pred"]}, list(function.instructions())[:-1]


def refusal(registers: dict[str, PtxType], instruction: Instruction) -> str | None:
    """Why the instruction is refused, or None where code comes of it."""
    lanes = WarpEmitter(Registers(registers), Storage())
    lanes.begin_block("%mask", Block([instruction]))
    try:
        emitter = emitter_for(instruction)
        lanes.guard(instruction)
        emitter(lanes, instruction)
    except UnsupportedInstruction as error:
        return str(error)
    return None


def refusal_of_form(instruction: Instruction) -> str | None:
    """Why there is no code for what is written before the operands, or for so many of them; None where there is."""
    try:
        emitter_for(instruction)
    except UnsupportedInstruction as error:
        return str(error)
    return None


def opcodes() -> list[str]:
    return sorted({name.partition(".")[0] for name in supported_opcodes()} - {"call"})


NO_EFFECT = ("applypriority", "brkpt", "discard", "nanosleep", "pmevent")
NO_EFFECT += ("prefetch", "prefetchu", "trap")


@pytest.mark.exhaustive
def test_every_form_is_either_supported_or_refused_by_name():
    """Opcode x modifiers x type x operands: the only exception is the one that names the form and its line."""
    accepted: dict[str, str] = {}
    registers, samples = shapes()
    for opcode in opcodes():
        for modifiers, kind in itertools.product(MODIFIERS.get(opcode, ("",)), (*TYPES, "")):
            words = tuple(word for word in (*modifiers.split("."), kind) if word)
            form = replace(samples[0], opcode=opcode, modifiers=words)
            why = refusal_of_form(form)
            if why is not None:
                assert f"'{form.form}' at PTX line {form.ptx_line}" in why, form.form
                if "operands" not in why:  # whatever they are
                    continue
            for sample, shape in zip(samples, SHAPES):
                instruction = replace(sample, opcode=opcode, modifiers=words)
                why = refusal(registers, instruction)
                if why is None:
                    if instruction.form in accepted:
                        continue
                    accepted[instruction.form] = f"{instruction.form} {shape};"
                    # A word that PTX does not have is never passed over.
                    odd = replace(instruction, modifiers=(*words, "sideways"))
                    assert opcode in NO_EFFECT or f"'{odd.form}'" in str(refusal(registers, odd)), odd.form
                else:
                    assert f"'{instruction.form}' at PTX line {instruction.ptx_line}" in why, instruction.form
    assert {form.partition(".")[0] for form in accepted} == set(opcodes())
    # All of these exist, each with one shape of operands or another.
    fences = {f"{opcode}.{form}" for opcode in ("fence", "membar", "griddepcontrol") for form in MODIFIERS[opcode]}
    assert fences - set(accepted) == {"fence.", "fence.proxy", "membar.", "griddepcontrol."}
    for text in accepted.values():
        llvm.parse_assembly(generate(parse(kernel(text)), "kernel").ir_as("warp")).verify()


@pytest.mark.parametrize(
    "text",
    [
        "wgmma.fence.sync;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.e4m3.e4m3 {r1, r2, r3, r4}, q1, q2, 1, 1, 1;",
        "wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {r1, r2, r3, r4}, q1, q2, 1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {r1, r2, r3, r4}, q1, q2, 1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {r1, r2, r3, r4}, q1, q2, 1, 1, 1;",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.s8 {r1, r2, r3, r4}, q1, q2, 1, 1, 1;",
        "wgmma.mma_async.sync.aligned.m64n8k32.satfinite.f32.e4m3.e4m3 {r1, r2, r3, r4}, q1, q2, 1, 1, 1;",
        "wgmma.wait_group.sync.aligned r1;",
        "tcgen05.alloc.sync.aligned.shared::cta.b32 [r1], 32;",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b64 [r1], 32;",
        "tcgen05.dealloc.cta_group::1.sync.b32 r1, 32;",
        "tcgen05.relinquish_alloc_permit.cta_group::3.sync.aligned;",
        "tcgen05.ld.sync.aligned.32x32b.x2.b32 {r1}, [r2];",
        "tcgen05.ld.sync.aligned.16x256b.x64.b32 {r1}, [r2];",
        "tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {r1}, [r2];",
        "tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {r1}, [r2], r3;",
        "tcgen05.ld.sync.aligned.32x32b.x1.b32 {r1}, [r2], 4;",
        "tcgen05.ld.sync.aligned.32x32b.x1.unpack::16b.b32 {r1}, [r2];",
        "tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {r1, r2}, r3, [r4];",
        "tcgen05.st.sync.aligned.32x32b.x1.pack::16b.b32 [r2], {r1};",
        "tcgen05.wait::ld.sync;",
        "tcgen05.mma.kind::f16 [r1], q1, q2, r2, p1;",
        "tcgen05.mma.cta_group::1 [r1], q1, q2, r2, p1;",
        "tcgen05.mma.cta_group::1.kind::f16 [r1], q1, q2, r2;",
        "tcgen05.mma.cta_group::1.kind::f16 [r1], q1, q2, r2, {r3, r4}, p1;",
        "tcgen05.mma.cta_group::1.kind::f16 [r1], q1, q2, r2, {r3, r4, r5, r6};",
        "tcgen05.mma.cta_group::1.kind::f16 [r1], q1, q2, r2, p1, 16;",
        "tcgen05.mma.cta_group::1.kind::f8f6f4 [r1], q1, q2, r2, p1, 1;",
        "tcgen05.mma.cta_group::1.kind::f16.ashift [r1], [r2], q2, r3, p1;",
        "tcgen05.mma.cta_group::1.kind::f16.collector::b0::fill [r1], q1, q2, r2, p1;",
        "tcgen05.mma.ws.cta_group::1.kind::f16.collector::a::fill [r1], q1, q2, r2, p1;",
        "tcgen05.mma.ws.cta_group::1.kind::f16 [r1], q1, q2, r2, p1, q3;",
        "tcgen05.mma.ws.cta_group::2.kind::f16 [r1], q1, q2, r2, p1;",
        "tcgen05.mma.sp.cta_group::1.kind::f16 [r1], q1, q2, [r2], r3, p1;",
        "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale [r1], q1, q2, r2, [r3], [r4], p1;",
        "tcgen05.cp.cta_group::1.64x128b [r1], q1;",
        "tcgen05.cp.cta_group::1.128x256b.warpx4 [r1], q1;",
        "tcgen05.cp.cta_group::1.128x256b.b6x16_p32 [r1], q1;",
        "tcgen05.shift.cta_group::1 [r1];",
        "tcgen05.commit.cta_group::1.b64 [r1];",
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.multicast::cluster.b64 [r1];",
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [r1], h1;",
        "setmaxnreg.inc.sync.aligned.u32 20;",
        "add.rz.f16 h1, h1, h2;",
        "max.xorsign.abs.f32 r1, r1, r2;",
        "add.sat.f32x2 q1, q1, q2;",
        "fma.f32x2 q1, q1, q2, q3;",
        "mul.f32.f16 r1, h1, r2;",
        "add.ftz.f32.f16 r1, h1, r2;",
        "fma.rn.oob.f16 h1, h1, h2, h3;",
        "cvt.rn.e4m3x2.f32 h1, r1, r2;",
        "cvt.rz.satfinite.e4m3x2.f32 h1, r1, r2;",
        "cvt.rn.satfinite.e5m2x2.f32 h1, r1;",
        "cvt.rn.satfinite.f16x2.e4m3x2 r1, h1;",
        "cvt.rn.e2m1x2.f32 h1, r1, r2;",
        "cvt.rn.satfinite.e2m1x4.f32 h1, r1, r2;",
        "cvt.rn.ue8m0x2.f32 h1, r1, r2;",
        "cvt.rp.satfinite.ue8m0x2.f16x2 h1, r1;",
        "cvt.rz.bf16x2.ue8m0x2 r1, h1;",
        "mov.b128 q1, {q1, q2};",
        "mov.b128 w1, q2;",
        "mov.b128 w1, {q1};",
        "mov.b128 {h1, h2, h3, h4, h5, h6, h7, h0}, w1;",
        "ld.global.b128 q1, [q2];",
        "ld.global.v2.b128 {w1, w2}, [q2];",
        "st.shared.b128 [r1], q2;",
        "clusterlaunchcontrol.try_cancel.mbarrier::complete_tx::bytes.b128 [q1], [q2];",
        "clusterlaunchcontrol.try_cancel.async.b128 [q1], [q2];",
        "clusterlaunchcontrol.try_cancel.async.shared::cluster.mbarrier::complete_tx::bytes.b128 [r1], [r2];",
        "clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.multicast::cluster.b128 [q1], [q2];",
        "clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.b64 [q1], [q2];",
        "clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.b128 q1, [q2];",
        "clusterlaunchcontrol.query_cancel.is_canceled.b128 p1, w1;",
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p1, q1;",
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 r1, w1;",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid.b32.b128 r1, w1;",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {r1, r2, r3}, w1;",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.v4.b32.b128 {r1, r2, r3, r4}, w1;",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::w.b32.b128 r1, w1;",
        "ld.shared.v8.f32 {r1, r2, r3, r4, r5, r6, r7, r8}, [r2];",
        "ld.global.v8.f64 {q1, q2, q3, q4, q5, q6, q7, q8}, [q2];",
        "ld.global.L2::cache_hint.f32 r1, [q2];",
        "st.global.f32 [q2], r1, q3;",
        "createpolicy.fractional.b32 r1;",
        "atom.global.add.v2.f32 r1, [q1], {r3, r4};",
        "atom.global.add.v4.f32 {r1, r2}, [q1], {r3, r4};",
        "red.global.add.v2.f32 [q1], r1;",
        "red.global.add.v8.f32 [q1], {r1, r2, r3, r4, r5, r6, r7, r8};",
        "red.global.add.v2.u32 [q1], {r1, r2};",
        "red.global.add.v2.f64 [q1], {q2, q3};",
        "red.shared.add.v2.f32 [q1], {r1, r2};",
        "red.global.max.v2.u32 [q1], {r1, r2};",
        "atom.global.exch.b128 q1, [q2], q3;",
        "atom.global.add.u32 r1, [q2], r3, r4, q5;",
        "red.global.add.L2::cache_hint.u32 [q2], r1;",
        "red.async.relaxed.cluster.add.u32 [q1], r1;",
        "red.async.relaxed.cluster.mbarrier::complete_tx::bytes.add.s64 [q1], q2, [q3];",
        "red.async.relaxed.cluster.shared::cluster.add.u32 [r1], r2, [r3];",
        "tensormap.replace.tile.elemtype.global.b1024.b32 [q1], 16;",
        "tensormap.replace.tile.swizzle_mode.global.b1024.b32 [q1], 4;",
        "tensormap.replace.tile.interleave_layout.global.b1024.b32 [q1], 1;",
        "tensormap.replace.tile.fill_mode.global.b1024.b32 [q1], r2;",
        "tensormap.replace.tile.rank.global.b1024.b64 [q1], q2;",
        "tensormap.replace.tile.box_dim.global.b1024.b32 [q1], r2;",
        "tensormap.replace.tile.box_dim.global.b1024.b32 [q1], 5, r2;",
        "tensormap.replace.tile.global_stride.global.b1024.b64 [q1], 4, q2;",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [q1], [r2], 64;",
        "red.async.release.gpu.global.add.u32 [q1], r1, [q2];",
        "st.async.release.gpu.global.b32 [q1], r1, [q2];",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b64 [r1], {q1, q2, q3, q4}, [r2];",
        "st.async.shared::cluster.b32 [r1], r2, [r3];",
        "multimem.ld_reduce.relaxed.gpu.global.add.f32 r1, [q1];",
        "multimem.red.relaxed.gpu.global.add.f32 [q1], r1;",
        "shfl.idx.b32 r1, r2, 0, 31;",
        "vote.ballot.b32 r1, p1;",
        "redux.sync.add.f32 r1, r2, -1;",
        "redux.sync.min.abs.u32 r1, r2, -1;",
        "@p1 bar.sync 0;",
        "fence.proxy.sideways;",
        "fence.proxy.async.local;",
        "fence.proxy.tensormap::generic.acquire.gpu;",
        "membar.proxy.async;",
        "membar.gpu;",
        "fence.gl;",
        "fence.relaxed.gpu;",
        "griddepcontrol.launch;",
        "fns.b32 r1, r2, 0, 1;",
        "szext.s32 r1, r2, r3;",
        "szext.wrap.s64 q1, q2, q3;",
        "mov.u32 r1, %total_smem_size;",
        "mov.u32 r1, %envreg3;",
        "tex.2d.v4.f16.f32 {h1, h2, h3, h4}, [q1, {r1, r2}];",
        "tex.2d.v4.f32.f32 {r1, r2, r3, r4}, [q1, {r1}];",
        "tex.2d.v4.f32.f32 {r1, r2, r3, r4}, [q1, q2, {r1, r2}];",
        "tex.2dms.v4.f32.s32 {r1, r2, r3, r4}, [q1, {r1, r2, r3, r4}];",
        "tex.cube.v4.f32.s32 {r1, r2, r3, r4}, [q1, {r1, r2, r3, r4}];",
        "tld4.r.3d.v4.f32.f32 {r1, r2, r3, r4}, [q1, {r1, r2, r3, r4}];",
        "suld.b.2d.v4.b64.trap {q1, q2, q3, q4}, [q5, {r1, r2}];",
        "suld.b.2d.b32 {r1}, [q1, {r1, r2}];",
        "sust.p.2d.v4.b32.zero [q1, {r1, r2}], {r1, r2, r3, r4};",
        "sured.b.add.2d.u32.zero [q1, {r1, r2}], r3;",
        "sub.u16x2 r1, r2, r3;",
        "mbarrier.test_wait.shared.b64 p1, [r1], q1, 10;",
        "mbarrier.try_wait.shared::cluster.b64 p1, [r1], q1;",
        "mbarrier.init.shared::cluster.b64 [r1], 1;",
        "mbarrier.arrive.shared::cluster.b64 q1, [r1];",
        "barrier.cluster.sync;",
        "barrier.cluster.arrive.acquire;",
        "barrier.cluster.wait.relaxed;",
        "barrier.cluster.wait 0;",
        "mapa.shared::cta.u32 r1, r2, 0;",
        "getctarank.u16 r1, r2;",
        "cp.async.mbarrier.arrive.noinc.shared.b32 [r1];",
        "cp.async.mbarrier.noinc.shared.b64 [r1];",
        "cp.async.bulk.shared::cluster.shared::cta.bulk_group [r1], [r2], 16, [r3];",
        "cp.async.bulk.tensor.1d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [r1], [q1, {r2}], [r4];",
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [r1], [q1, {r2}], [r4];",
        "cp.async.bulk.tensor.1d.shared::cta.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[r1], [q1, {r2}], [r3], h1;",
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[r1], [q1, {r2}], [r3];",
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::3 "
        "[r1], [q1, {r2}], [r3];",
        "cp.async.bulk.tensor.1d.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [r1], [q1, {r2}], [r3];",
        "cp.async.bulk.wait_group r1;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s64 [q1], [r1], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f32 [q1], [r1], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [q1], [r1], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.noftz.f16 [q1], [r1], 16;",
        "cp.reduce.async.bulk.global.shared::cta.add.u32 [q1], [r1], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.exch.b32 [q1], [r1], 16;",
        "cp.reduce.async.bulk.tensor.1d.global.shared::cta.bulk_group [q1, {r2}], [r3];",
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.f32 [r1], [r2], 16, [r3];",
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.and.b64 [r1], [r2], 16, [r3];",
        "cp.async.cg.shared.global [r1], [q1], 8;",
        "cp.async.ca.shared.global [r1], [q1], 2;",
        "cp.async.ca.shared::cluster.global [r1], [q1], 4;",
        "cp.async.ca.shared.global [r1], [q1], r2;",
        "cp.async.ca.shared.global [r1], [q1], 4, r2, r3;",
        "cp.async.ca.shared.global.L2::cache_hint [r1], [q1], 4;",
        "cp.async.wait_group r1;",
        "cp.async.wait_all 0;",
    ],
)
def test_what_is_not_supported_names_opcode_and_line(text: str):
    form = text.removeprefix("@p1 ").split()[0].rstrip(";")
    with pytest.raises(UnsupportedInstruction, match=rf"'{re.escape(form)}' at PTX line 6"):
        generate(parse(kernel(text)), "kernel")


def test_tensor_cores_need_a_target_that_has_them() -> None:
    text = kernel("tcgen05.wait::ld.sync.aligned;")
    generate(parse(text), "kernel")
    for target in ("sm_90a", "sm_100", "sm_120a"):
        with pytest.raises(UnsupportedInstruction, match=f"needs '.target sm_100a' or 'sm_100f', and this is {target}"):
            generate(parse(text.replace("sm_100a", target)), "kernel")


def test_where_the_user_wrote_it():
    """With line information the user's own line stands first."""
    body = ".reg .f64 d<3>;\n.loc 1 42 7\nadd.sat.f64 d1, d1, d2;\nret;"
    text = f'{HEADER}.visible .entry kernel()\n{{ {body} }}\n.file 1 "attention.cu"\n'
    with pytest.raises(UnsupportedInstruction, match=r"'add.sat.f64' at attention.cu:42 \(PTX line 7\)"):
        generate(parse(text), "kernel")


def test_an_instruction_is_not_supported_by_mistake():
    """The check above can fail: a form that is taken but not emulated would be noticed by its opcode."""
    instruction = Instruction("teleport", ("b32",), (), None, False, 3, None)
    with pytest.raises(UnsupportedInstruction, match=r"'teleport.b32' at PTX line 3"):
        emitter_for(instruction)
