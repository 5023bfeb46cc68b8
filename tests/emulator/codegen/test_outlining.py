"""Instructions of one shape share a function: how many there are, where registers are, and what waiting lanes keep."""

from __future__ import annotations

import re

import numpy as np
import pytest
from single_opcode import HEADER, run_body

from harness.emulator.codegen import kernel
from harness.emulator.codegen.emitters import Emitter, emitter_for
from harness.emulator.codegen.kernel import KernelCode, generate
from harness.emulator.codegen.outlining import OutliningEmitter
from harness.emulator.native.tier import Tier
from harness.ptx.instructions import Instruction
from harness.ptx.parsing.parser import parse
from harness.support.errors import KernelFault

TIERS = pytest.mark.parametrize("tier", Tier)


def code_of(body: str, instructions: int) -> KernelCode:
    """A kernel of these statements, outlined."""
    text = f"""{HEADER}
.visible .entry kernel(.param .u64 out) {{
  .reg .pred %p<4>; .reg .b32 %r<{instructions + 9}>; .reg .f32 %f<{instructions + 9}>; .reg .b64 %rd<4>;
  .shared .align 16 .b8 tile[16384];
  ld.param.u64 %rd1, [out];
  {body}
  ret;
}}"""
    return generate(parse(text), "kernel", outlined=True)


def unrolled(steps: int) -> str:
    """A loop as compilers leave it: other registers, offsets and literals each time."""
    lines = ["mov.f32 %f0, 0f00000000; mov.u32 %r0, %tid.x;"]
    for step in range(steps):
        lines.append(f"ld.shared.f32 %f{step + 2}, [%r0+{4 * step + 4}];")
        lines.append(f"fma.rn.f32 %f{step + 3}, %f{step + 2}, 0f{0x3F800001 + step:08X}, %f{step + 2};")
        lines.append(f"add.s32 %r{step + 2}, %r{step + 1}, {step + 7};")
    lines.append(f"st.global.f32 [%rd1], %f{steps + 2}; st.global.u32 [%rd1+4], %r{steps + 1};")
    return "\n".join(lines)


def functions_of(code: KernelCode) -> int:
    return len(re.findall(r"^define internal i32 @shape", code.body, flags=re.M))


def test_an_unrolled_loop_needs_no_more_functions_than_two_steps_of_it() -> None:
    assert functions_of(code_of(unrolled(200), 400)) == functions_of(code_of(unrolled(3), 400))


def test_registers_of_one_block_share_places() -> None:
    assert code_of(unrolled(200), 400).facts.register_bytes == code_of(unrolled(3), 400).facts.register_bytes


def test_registers_that_two_blocks_know_do_not_share_places() -> None:
    def chain(length: int) -> str:
        writes = "".join(f"mov.u32 %r{n}, {n};" for n in range(length))
        reads = "".join(f"st.global.u32 [%rd1], %r{n};" for n in range(length))
        return f"{writes} setp.eq.u32 %p1, %r1, %r2; @%p1 bra LATER; add.u32 %r1, %r1, 1; LATER: {reads}"

    longer = code_of(chain(40), 60).facts.register_bytes
    assert longer == code_of(chain(30), 60).facts.register_bytes + 10 * 128


@TIERS
def test_lanes_that_wait_keep_what_others_overwrite(tier: Tier) -> None:
    """While half of the warp works with r1 and p1, the other half waits with its own; so does a guarded write."""
    out = np.zeros((3, 32), dtype=np.uint32)
    run_body(
        """
        mul.wide.u32 q30, tid, 4; add.u64 q30, q30, out;
        mov.u32 r1, 5; setp.lt.u32 p1, tid, 16; setp.lt.u32 p2, tid, 8; mov.u32 r2, tid;
        @p1 bra OTHERS;
        mov.u32 r1, 100; add.u32 r3, r1, tid; setp.eq.u32 p1, r3, 117; mov.u32 r2, r3; @p1 mov.u32 r2, 1;
        bra STORE;
        OTHERS:
        add.u32 r1, r1, 1; @p2 add.u32 r2, r2, 1000; setp.eq.u32 p1, tid, 3;
        STORE:
        selp.u32 r4, 1, 0, p1;
        st.global.u32 [q30], r1; st.global.u32 [q30+128], r2; st.global.u32 [q30+256], r4;
        """,
        {"out": out},
        tier=tier,
    )
    lanes = np.arange(32)
    assert (out[0] == np.where(lanes < 16, 6, 100)).all()
    above = np.where(lanes == 17, 1, lanes + 100)
    assert (out[1] == np.where(lanes < 8, lanes + 1000, np.where(lanes < 16, lanes, above))).all()
    assert (out[2] == ((lanes == 3) | (lanes == 17))).all()


@TIERS
def test_a_fault_names_the_line_of_its_own_instruction(tier: Tier) -> None:
    """Two loads share a function; the second one strays."""
    body = "\n".join(
        (
            "mul.wide.u32 q1, tid, 4; add.u64 q1, q1, out;",
            "ld.global.u32 r1, [q1];",
            "ld.global.u32 r2, [q1+4096];",
            "st.global.u32 [q1], r2;",
        )
    )
    lines = []
    for text in (body, body.replace("ld.global.u32 r2", "\n\nld.global.u32 r2")):
        with pytest.raises(KernelFault) as fault:
            run_body(text, {"out": np.zeros(32, dtype=np.uint32)}, tier=tier)
        lines.append(int(re.findall(r"PTX line (\d+)", str(fault.value))[0]))
    assert lines[1] == lines[0] + 2


class Anew(OutliningEmitter):
    """Emits every instruction by itself."""

    def repeat(self, instruction: Instruction) -> bool:
        return False


ALIKE = {
    "registers": "add.s32 %r1, %r2, %r3; add.s32 %r4, %r5, %r6;",
    "the same register twice": "add.s32 %r1, %r2, %r3; add.s32 %r4, %r5, %r5; add.s32 %r4, %r4, %r5;",
    "constants": "add.s32 %r1, %r2, 7; add.s32 %r3, %r4, 7; add.s32 %r3, %r4, 8; add.s32 %r3, %r4, 0;",
    "guards": "setp.lt.s32 %p1, %r1, %r2; @%p1 mov.b32 %r3, %r4; @!%p1 mov.b32 %r5, %r6; @%p2 mov.b32 %r7, %r8;",
    "negated predicates": "setp.lt.and.s32 %p1, %r1, %r2, %p2; setp.lt.and.s32 %p1, %r1, %r2, !%p2;",
    "types of registers": "mov.b32 %r1, 1; mov.b64 %rd2, 2; cvt.u32.u32 %r2, %r1; cvt.u32.u32 %r3, %rd2;",
    "flushed floats": "mov.b32 %f2, %r1; add.ftz.f32 %f1, %f2, %f2; add.ftz.f32 %f4, %f1, %f1; mov.b32 %r2, %f4;",
    "carries": "add.cc.u32 %r1, %r2, %r3; addc.u32 %r4, %r5, %r6; add.cc.u32 %r2, %r3, %r4; addc.u32 %r5, %r6, %r7;",
    "registers of several blocks": "mov.b32 %r1, 1; bra ON; ON: add.s32 %r2, %r1, %r3; add.s32 %r3, %r4, %r5;",
    "special registers": "mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.x;",
    "nothing to do": "mov.u32 _, %r1; mov.u32 _, %r2; mov.u32 %r3, %r3;",
    "a dying register's place": "add.s32 %r1, %r2, 1; add.s32 %r3, %r1, 1; add.s32 %r4, %r3, 1; add.s32 %r5, %r4, 1;",
}


@pytest.mark.parametrize("body", ALIKE.values(), ids=ALIKE)
def test_what_is_emitted_as_another_one_was_is_what_it_would_be_by_itself(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = "".join(f"st.global.u32 [%rd1+{4 * n}], %r{n};" for n in range(1, 8))
    text = f"{{ {body} }} {{ {body} }} {stores}"
    code = code_of(text, 20)
    monkeypatch.setattr(kernel, "OutliningEmitter", Anew)
    anew = code_of(text, 20)
    assert (code.body, code.facts) == (anew.body, anew.facts)


def test_an_unrolled_loop_is_emitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[str] = []

    def counted(instruction: Instruction) -> Emitter:
        emitted.append(instruction.opcode)
        return emitter_for(instruction)

    monkeypatch.setattr(kernel, "emitter_for", counted)
    code_of("".join(f"fma.rn.f32 %f{n}, %f{n + 1}, %f{n + 2}, %f{n};" for n in range(50)), 60)
    assert emitted.count("fma") == 1
