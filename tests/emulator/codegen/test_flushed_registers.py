"""Registers that need not be flushed again: which they are, and that a subnormal never slips through."""

from __future__ import annotations

import numpy as np
from single_opcode import run_case

from harness.emulator.codegen.flushed_registers import flushed_registers
from harness.ptx.parsing.parser import parse

SUBNORMAL = 0x00400000


def flushed(body: str) -> set[str]:
    text = f"""
.version 8.0
.target sm_90
.address_size 64
.entry k(.param .f32 x) {{
  .reg .pred %p<4>; .reg .b32 %r<4>; .reg .f32 %f<9>; .reg .f64 %d<4>;
  {body}
  ret;
}}
"""
    return set(flushed_registers(parse(text).functions["k"])) & {f"%f{n}" for n in range(9)}


def test_results_of_ftz_and_their_copies_are_flushed() -> None:
    assert flushed("""
  ld.param.f32 %f1, [x];
  mul.ftz.f32 %f2, %f1, %f1;
  mov.f32 %f3, %f2;
  selp.f32 %f4, %f3, 0f3F800000, %p1;
  fma.rn.ftz.f32 %f4, %f1, %f1, %f4;
""") == {"%f2", "%f3", "%f4"}


def test_a_loop_carries_what_it_began_with() -> None:
    assert flushed("""
  mov.f32 %f1, 0f00000000;
  mov.f32 %f2, 0f00400000;
again:
  mov.f32 %f3, %f1;
  mov.f32 %f4, %f2;
  add.ftz.f32 %f1, %f3, %f4;
  mov.f32 %f2, %f4;
  @%p1 bra again;
""") == {"%f1", "%f3"}


def test_one_other_write_is_enough_to_doubt() -> None:
    for write in (
        "ld.param.f32 %f1, [x];",
        "add.f32 %f1, %f1, %f1;",
        "@%p1 mov.f32 %f1, 0f00400000;",
        "mov.b32 %f1, %r1;",
        "mov.b32 %f1, 5;",
        "mov.u32 %f1, %tid.x;",
        "cvt.rn.f32.f64 %f1, %d1;",
        "selp.f32 %f1, %f2, %f1, %p1;",
    ):
        assert flushed(f"mul.ftz.f32 %f1, %f1, %f1; mov.f32 %f2, 0f00400000; {write}") == set(), write


def test_functions_without_ftz_have_none() -> None:
    assert flushed("mov.f32 %f1, 0f00000000;") == set()


def test_a_subnormal_that_took_the_other_way_is_flushed_where_it_is_used() -> None:
    way = np.array([0, 1], np.uint32)
    given = np.array([SUBNORMAL, SUBNORMAL | 1 << 31], np.uint32)
    text = """  // times 2^100, which a subnormal would survive
  { .reg .f32 t; .reg .pred q;
  setp.ne.u32 q, b, 0;
  mul.ftz.f32 t, a, 0f3F800000;
  @!q bra behind;
  mov.b32 t, a;
behind:
  mul.ftz.f32 d, t, 0f71800000; }"""
    assert run_case(text, "b32", given, way).tolist() == [0, 1 << 31]
