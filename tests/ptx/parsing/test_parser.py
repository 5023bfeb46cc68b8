"""PTX text -> functions: what compilers write is understood, what is broken is refused with its line."""

from __future__ import annotations

import pytest

from harness.emulator.codegen.kernel import generate
from harness.ptx.inline import inline_calls
from harness.ptx.instructions import Address, Imm, Instruction, Pair, Reg, SourceLine, Symbol, Vector
from harness.ptx.parsing.lexer import INSTRUCTION, LOCATION, tokenize
from harness.ptx.parsing.parser import parse
from harness.support.errors import CompileError, UnsupportedInstruction

pytestmark = pytest.mark.compiles(False)

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"


def body(text: str, registers: str = ".reg .b32 %r<9>; .reg .pred %p<3>; .reg .f32 %f<9>;") -> list[Instruction]:
    module = parse(f"{HEAD}.visible .entry k(.param .u64 a)\n{{\n{registers}\n{text}\n}}")
    return list(module.functions["k"].instructions())


def test_operands_of_every_kind() -> None:
    (add,) = body("@!%p1 add.sat.s32 %r1, %r2, -5;")
    assert (add.opcode, add.modifiers, add.predicate, add.negated) == ("add", ("sat", "s32"), Reg("%p1"), True)
    assert add.operands == (Reg("%r1"), Reg("%r2"), Imm(-5))
    assert add.ptx_line == 7
    load = body("ld.global.v2.f32 {%f1, _}, [%r1+-8];")[0]
    assert load.operands == (Vector((Reg("%f1"), Reg("_"))), Address(Reg("%r1"), -8))
    assert body("mov.f32 %f1, 0f3F800000;")[0].operands[1] == Imm(0x3F800000, 32)
    assert body("setp.lt.s32 %p1|%p2, %r1, 0x1F;")[0].operands[0] == Pair(Reg("%p1"), Reg("%p2"))
    assert body("mov.u32 %r1, %tid.x;")[0].operands[1] == Reg("%tid.x")
    assert body("ld.param.u32 %r1, [a+4];")[0].operands[1] == Address(Symbol("a"), 4)


WHOLE = [
    "@!%p1 add.sat.s32 %r1, %r2, -5;",
    "@%p2  mov.b32   %r1,%r2 ;",
    "ld.global.v2.f32 {%f1, _}, [%r1+-8];",
    "st.shared::cta.f32 [%r1+0], %f1;",
    "ld.param.u32 %r1, [a+4];",
    "ld.param.u32 %r1, [a];",
    "mov.f32 %f1, 0f3F800000;",
    "mov.u32 %r1, 017;",
    "mov.u32 %r1, 0x1F;",
    "mov.u32 %r1, WARP_SZ;",
    "setp.lt.s32 %p1|%p2, %r1, 0;",
    "setp.lt.and.s32 %p1, %r1, 3, !%p2;",
    "cp.async.bulk.tensor.2d.shared::cluster.global [%r1], [a, {%r2, %r3}], [%r4];",
    "ret;",
    "bar.sync 0;",
]
"""Instructions on a line of their own."""


@pytest.mark.parametrize("text", WHOLE)
def test_an_instruction_in_one_piece_is_what_its_words_are(text: str) -> None:
    assert [token.kind for token in tokenize(f";\n{text}")] == ["mark", INSTRUCTION]
    (whole,) = body(text)
    (parted,) = body(text.replace(";", "// which ends it\n;"))
    assert whole == parted


BROKEN = [
    "add.s32 %r1, %r2, ;",
    "add.s32 %r1, , %r2;",
    "add.s32 %r1 %r2;",
    "add.s32 %r1, 08;",
    "add.s32 %r1, 99999999999999999999999;",
    "add.s32 %r1, 5%r2;",
    "ld.u32 %r1, [%r2;",
    "ld.u32 %r1, [-];",
    "ld.u32 %r1, [%r2+%r3];",
    "ld.u32 %r1, [5||];",
    "mov.b64 {%r1, {%r2}}, {%r3, {{%r2}}};",
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_instruction_in_one_piece_is_refused_in_the_same_words(text: str) -> None:
    with pytest.raises(CompileError) as whole:
        body(text)
    with pytest.raises(CompileError) as parted:
        body(text.replace(" ", " /* apart */ "))
    assert str(whole.value) == str(parted.value)
    assert "PTX line 7" in str(whole.value)


def test_an_instruction_where_none_belongs_is_read_by_its_words() -> None:
    for text in ("add.s32 %r1, %r2, %r3;", "@%p1 bra AGAIN;"):
        with pytest.raises(CompileError, match=r"PTX line 4: unknown directive '(add|@)'"):
            parse(f"{HEAD}{text}")
    with pytest.raises(CompileError, match="expected an operand, found '@'"):
        body("mov.b64 %r1, {\n@%p1 add.s32 %r1, %r2, %r3; }")


def test_an_operand_means_what_it_means_in_its_scope() -> None:
    first, inner, again = body("add.s32 t, t, 1; { .reg .b32 t; add.s32 t, t, 1; } add.s32 t, t, 1;", ".reg .b32 t;")
    assert first.operands == again.operands == (Reg("t"), Reg("t"), Imm(1))
    assert inner.operands[0] == inner.operands[1] != first.operands[0]
    # Declared later in the same scope, where it was the outer one's before.
    before, after = body("{ mov.b32 t, 1; .reg .b32 t; mov.b32 t, 1; }", ".reg .b32 t;")
    assert before.operands[0] == Reg("t") != after.operands[0]


def test_scopes_rename_what_they_declare() -> None:
    first, second, outer = body("{ .reg .b32 t; mov.b32 t, %r1; } { .reg .b32 t; mov.b32 t, %r2; } mov.b32 %r3, %r4;")
    assert first.operands[0] != second.operands[0]
    assert outer.operands == (Reg("%r3"), Reg("%r4"))


def test_source_lines_and_headers_that_were_inlined() -> None:
    text = """.loc 1 5 3
add.s32 %r1, %r1, %r1;
.loc 2 900 1, function_name $L__info0, inlined_at 1 7 2
add.s32 %r2, %r2, %r2;
"""
    module = parse(
        f'{HEAD}.entry k()\n{{ .reg .b32 %r<5>;\n{text} ret; }}\n.file 1 "mine.cu"\n.file 2 "cuda_fp16.hpp"\n'
    )
    first, second, _ = module.functions["k"].instructions()
    assert first.source == SourceLine("mine.cu", 5)
    assert second.source == SourceLine("mine.cu", 7)


def test_a_call_within_a_call_counts_for_the_kernels_own_line() -> None:
    text = """.loc 1 5 3
add.s32 %r1, %r1, %r1;
.loc 2 92 9, function_name $L__info0, inlined_at 1 123 13
.loc 2 20 33, function_name $L__info1, inlined_at 2 92 9
add.s32 %r2, %r2, %r2;
.loc 2 92 9
.loc 2 20 33, function_name $L__info1, inlined_at 2 92 9
add.s32 %r3, %r3, %r3;
"""
    module = parse(f'{HEAD}.entry k()\n{{ .reg .b32 %r<5>;\n{text} ret; }}\n.file 1 "mine.cu"\n.file 2 "tiles.cuh"\n')
    _, second, third, _ = module.functions["k"].instructions()
    assert second.source == SourceLine("mine.cu", 123)
    # Here the compiler does not say who called line 92: whoever it was before.
    assert third.source == SourceLine("mine.cu", 123)


def test_of_calls_in_the_kernels_own_file_the_innermost_counts() -> None:
    text = """.loc 1 5 3
.loc 1 60 9, function_name $L__info0, inlined_at 1 123 13
.loc 2 92 9, function_name $L__info1, inlined_at 1 60 9
add.s32 %r1, %r1, %r1;
"""
    module = parse(f'{HEAD}.entry k()\n{{ .reg .b32 %r<5>;\n{text} ret; }}\n.file 1 "mine.cu"\n.file 2 "tiles.cuh"\n')
    first, _ = module.functions["k"].instructions()
    assert first.source == SourceLine("mine.cu", 60)


@pytest.mark.parametrize(
    "location",
    ["1 60 9", "2 92 9, function_name $L__info0, inlined_at 1 60 9", "2 92 9, function_name f+12, inlined_at 2 7 3"],
)
def test_a_location_as_compilers_write_it_is_read_as_any_other(location: str) -> None:
    """With a comment behind it, the parser takes it word by word."""
    fast = (
        f'{HEAD}.file 1 "mine.cu"\n.file 2 "tiles.cuh"\n'
        f".entry k()\n{{ .reg .b32 %r<5>;\n.loc 1 5 3\n.loc\t{location}\nadd.s32 %r1, %r1, %r1;\n}}\n"
    )
    slow = fast.replace(location, f"{location} // here")
    assert [token.kind for token in tokenize(fast)].count(LOCATION) == 2
    assert [token.kind for token in tokenize(slow)].count(LOCATION) == 1
    assert parse(fast) == parse(slow)


def test_a_caller_is_forgotten_with_its_function() -> None:
    called = ".loc 2 92 9, function_name $L__info0, inlined_at 1 123 13"
    module = parse(
        f"{HEAD}.entry k()\n{{ .reg .b32 %r<5>;\n.loc 1 5 3\n{called}\nadd.s32 %r1, %r1, %r1; ret; }}\n"
        f".entry j()\n{{ .reg .b32 %r<5>;\n.loc 1 9 3\n.loc 2 92 9\nadd.s32 %r1, %r1, %r1; ret; }}\n"
        '.file 1 "mine.cu"\n.file 2 "tiles.cuh"\n'
    )
    (first, _), (second, _) = module.functions["k"].instructions(), module.functions["j"].instructions()
    assert first.source == SourceLine("mine.cu", 123)
    assert second.source == SourceLine("tiles.cuh", 92)


def test_variables_with_initial_values() -> None:
    module = parse(HEAD + ".global .align 4 .f32 t[3] = {0f3F800000, 0f40000000};\n.const .u8 c = 7;\n")
    assert module.variables["t"].initial == bytes.fromhex("0000803f00000040")  # the rest is zero
    assert module.variables["t"].size_bytes == 12
    assert module.variables["c"].initial == b"\7"


@pytest.mark.parametrize(
    ("text", "line"),
    [("add.s32 %r1, %r2", 8), ("add.s32 %r1 %r2, 5;", 7), ("mov.b32 %r1, `;", 7), (".wrong 5;", 7)],
)
def test_broken_text_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(CompileError, match=f"PTX line {line}|ends in the middle"):
        body(text)


def test_undeclared_names_are_found_before_code_is_generated() -> None:
    for text in ("mov.u64 %r1, nowhere;", "bra $nowhere;", "add.s32 x, %r1, %r2;"):
        with pytest.raises(CompileError, match="is not declared"):
            generate(parse(f"{HEAD}.entry k() {{ .reg .b32 %r<5>; {text} ret; }}"), "k")
    with pytest.raises(CompileError, match="no kernel 'missing'"):
        generate(parse(HEAD), "missing")


@pytest.mark.parametrize(
    "text",
    [
        "tcgen05.mma.sp.cta_group::1.kind::f16 [%r1], %rd1, %rd1, [%r1], %r1, 1;",
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r1}, {%r1}, {%r1}, {%r1};",
        "add.wobbly.s32 %r1, %r1, %r1;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r1], 16;",
        "mov.u32 %r1, %clusterid.w;",
    ],
)
def test_what_is_not_emulated_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(UnsupportedInstruction) as caught:
        generate(parse(f"{HEAD}.entry k() {{ .reg .b32 %r<5>;\n{text} ret; }}"), "k")
    named = "%clusterid.w" if "cluster" in text else text.split()[0].rstrip(";")
    assert named in str(caught.value)


CALLS = (
    HEAD
    + """
.func (.param .b32 out) twice(.param .b32 in) {
  .reg .b32 %r<3>;
  ld.param.b32 %r1, [in];
  add.s32 %r2, %r1, %r1;
  st.param.b32 [out], %r2;
  ret;
}
.entry k() {
  .reg .b32 %r<3>;
  { .param .b32 p; .param .b32 q; st.param.b32 [p], %r1; call (q), twice, (p); ld.param.b32 %r2, [q]; }
  { .param .b32 p; .param .b32 q; st.param.b32 [p], %r2; call (q), twice, (p); ld.param.b32 %r1, [q]; }
  ret;
}
"""
)


def test_each_call_gets_registers_of_its_own() -> None:
    module = parse(CALLS)
    flat = inline_calls(module, module.functions["k"])
    adds = [i for i in flat.instructions() if i.opcode == "add"]
    assert len(adds) == 2
    assert adds[0].operands[0] != adds[1].operands[0]
    assert not any(i.opcode == "call" for i in flat.instructions())
    generate(module, "k")
