"""To which array in shared memory an address is proven to belong: a chain of PTX each, and what it proves."""

from __future__ import annotations

import pytest

from harness.emulator.codegen.instrumentation.shared_arrays import arrays_of_registers
from harness.ptx.parsing.parser import parse

pytestmark = pytest.mark.compiles(False)


def proven(body: str) -> dict[str, str]:
    text = f"""
.version 8.0
.target sm_90
.address_size 64
.shared .align 4 .b8 A[64];
.shared .align 4 .b8 B[64];
.extern .shared .align 16 .b8 D[];
.global .align 4 .b8 G[64];
.entry k(.param .u32 n, .param .u64 p) {{
  .reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %rd<9>; .reg .f32 %f<4>;
  .local .align 8 .b8 L[16];
  {body}
  ret;
}}
"""
    return arrays_of_registers(parse(text).functions["k"], frozenset("ABD"))


def test_a_symbol_plus_an_index_belongs_to_its_array():
    assert proven("""
  mov.u32 %r1, %tid.x;
  ld.param.u32 %r2, [n];
  xor.b32 %r3, %r1, %r2;
  mov.u32 %r4, A;
  shl.b32 %r5, %r3, 2;
  add.s32 %r6, %r5, %r4;
  sub.s32 %r7, %r6, %r2;
  mad.lo.s32 %r8, %r1, 4, %r7;
  add.s32 %r9, %r1, B;
  mov.u32 %r10, D+16;
""") == {"%r4": "A", "%r6": "A", "%r7": "A", "%r8": "A", "%r9": "B", "%r10": "D"}


def test_conversions_between_widths_and_spaces_keep_the_array():
    assert proven("""
  mov.u32 %r1, A;
  cvt.u64.u32 %rd1, %r1;
  cvta.shared.u64 %rd2, %rd1;
  mul.wide.s32 %rd3, %r9, 4;
  add.s64 %rd4, %rd2, %rd3;
  cvta.to.shared.u64 %rd5, %rd4;
  cvt.u32.u64 %r2, %rd5;
""") == {"%r1": "A", "%rd1": "A", "%rd2": "A", "%rd4": "A", "%rd5": "A", "%r2": "A"}


def test_a_pointer_that_a_loop_moves_on_belongs_to_what_it_began_in():
    assert proven("""
  mov.u32 %r1, A;
again:
  mov.u32 %r2, %r1;
  add.s32 %r1, %r2, 4;
  @%p1 bra again;
""") == {"%r1": "A", "%r2": "A"}


@pytest.mark.parametrize(
    "last",
    [
        "xor.b32 %r4, %r1, 64;",
        "and.b32 %r4, %r1, -16;",
        "or.b32 %r4, %r1, 4;",
        "sub.s32 %r4, %r2, %r1;",
        "add.s32 %r4, %r1, %r2;",
        "selp.b32 %r4, %r1, %r2, %p1;",
        "@%p1 mov.u32 %r4, %r1; @!%p1 mov.u32 %r4, %r2;",
        "@%p1 mov.u32 %r4, %r1; @!%p1 mov.u32 %r4, 0;",
        "shfl.sync.idx.b32 %r4, %r1, 0, 31, -1;",
        "mapa.shared::cluster.u32 %r4, %r1, 0;",
        "sub.s32 %r3, %r2, %r1; add.s32 %r4, %r1, %r3;",
        "xor.b32 %r3, %r1, %r2; add.s32 %r4, %r1, %r3;",
        "mad.lo.s32 %r4, %r1, 1, %r2;",
        "mov.u64 %rd1, G; cvt.u32.u64 %r3, %rd1; add.s32 %r4, %r1, %r3;",
        "mov.b64 %rd1, {%r1, %r2}; cvt.u32.u64 %r4, %rd1;",
        "prmt.b32 %r4, %r1, %r2, 12816;",
        "add.cc.u32 %r4, %r1, 4;",
        "min.u32 %r4, %r1, %r2;",
    ],
)
def test_whatever_else_is_done_to_an_address_proves_nothing(last: str):
    assert proven(f"mov.u32 %r1, A; mov.u32 %r2, B; {last}") == {"%r1": "A", "%r2": "B"}


def test_a_choice_within_one_array_belongs_to_it():
    assert proven("mov.u32 %r1, A; add.s32 %r2, %r1, 8; selp.b32 %r3, %r1, %r2, %p1;")["%r3"] == "A"


@pytest.mark.parametrize(
    "store", ["st.local.u32 [L], %r3;", "st.shared.v2.u32 [A], {%r9, %r3};", "red.global.add.u32 [%rd8], %r3;"]
)
def test_what_is_loaded_proves_nothing_once_an_address_was_stored(store: str):
    """Here the difference of two arrays, which is added to one to reach the other."""
    body = "mov.u32 %r1, A; mov.u32 %r2, B; sub.s32 %r3, %r2, %r1; {} ld.local.u32 %r4, [L]; add.s32 %r5, %r1, %r4;"
    assert "%r5" not in proven(body.format(store))
    assert proven(body.format("st.local.u32 [L], %r9;"))["%r5"] == "A"
