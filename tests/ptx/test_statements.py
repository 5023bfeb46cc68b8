"""Statements of PTX are found where they are, in text of any layout and in broken text."""

from __future__ import annotations

import time

import pytest

from harness.ptx.statements import entry_text, functions, instructions, statements

pytestmark = pytest.mark.compiles(False)

TEXT = """.version 8.0 // .entry remark() { ret; }
.target sm_90
.global .align 4 .b32 table[2] = { 3, 4 };
.extern .func (.param .b32 result) vprintf (.param .b64 a, .param .b64 b);
/* .func hidden() */
.visible .entry k /* ( */ (.param .u64 k_0 /* ) */, .param .u32 k_1) .maxntid 1, 1, 1
{
    .reg .b32 %r<3>; .pragma "no;thing";
    .loc 1 2 3, function_name $name+4, inlined_at 1 7 8 mov.u32 %r1, 0; // mov.u32 %r2, 1; }
$again: @!%p1 bra $again; {
        ld.global.v2.u32 /* ; */
            {%r1, %r2}, [%rd1]; }
    prototype: .callprototype (.param .b32 _) _ ();
    ret;
}
.func helper() { ret; }
"""


def test_functions() -> None:
    found = functions(TEXT)
    assert [(f.name, f.is_entry, f.is_extern, f.body is not None) for f in found] == [
        ("vprintf", False, True, False), ("k", True, False, True), ("helper", False, False, True),
    ]  # fmt: skip
    entry = entry_text(TEXT, "k")
    assert entry is not None and entry.parameters is not None and TEXT.startswith(".entry k", entry.start)
    assert TEXT[slice(*entry.parameters)] == ".param .u64 k_0 /* ) */, .param .u32 k_1"
    assert TEXT[entry.end :].startswith(" .maxntid")
    assert entry_text(TEXT, "helper") is None and list(statements(TEXT, found[0])) == []


def test_statements() -> None:
    found = list(statements(TEXT, functions(TEXT)[1]))
    assert [(each.kind, each.text.split()[0]) for each in found] == [
        ("directive", ".reg"), ("directive", ".pragma"), ("location", ".loc"), ("instruction", "mov.u32"),
        ("label", "$again:"), ("instruction", "@!%p1"), ("open", "{"), ("instruction", "ld.global.v2.u32"),
        ("close", "}"), ("label", "prototype:"), ("directive", ".callprototype"), ("instruction", "ret;"),
        ("close", "}"),
    ]  # fmt: skip
    assert all(TEXT.startswith(each.text, each.start) for each in found)


def test_instructions_of_a_module_and_of_a_piece_of_a_body() -> None:
    forms = ["mov.u32", "bra", "ld.global.v2.u32", "ret", "ret"]
    assert [form for form, _ in instructions(TEXT)] == forms
    assert list(instructions("@%p1 add.s32 %r1, %r2, 1;")) == [("add.s32", " %r1, %r2, 1")]


@pytest.mark.parametrize(
    "text",
    [
        ".entry k() { " + "add x " * 20000,
        ".entry k() { " + "add x " * 20000 + '"',
        ".entry k() { " + "add x " * 20000 + "/*",
        "/*" * 50000,
        ".entry k(" + "/**/ // c\n" * 20000 + "(",
        ".entry k " * 20000,
        ".entry k { " * 20000,
    ],
    ids=["no end", "an open string", "an open comment", "comments", "parentheses", "heads", "bodies"],
)
def test_broken_text_takes_no_more_time_than_other_text(text: str) -> None:
    begin = time.process_time()
    list(instructions(text))
    assert time.process_time() - begin < 1  # quadratic time would be minutes
