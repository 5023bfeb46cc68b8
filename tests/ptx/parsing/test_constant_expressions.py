"""Constant expressions of PTX. What their values are was asked of ptxas 13.0, as equal machine code."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from harness.ptx.instructions import Address, Arguments, Imm, Symbol
from harness.ptx.parsing.parser import parse
from harness.support.errors import CompileError
from tests.emulator.single_opcode import run_body

HEADER = ".version 8.3\n.target sm_90\n.address_size 64\n"
WHOLE = {
    "(1<<3)+4": 12,
    "1+2<<3": 24,
    "1|2^3&5": 3,
    "7 & 3 == 3": 1,
    "100/10/2": 5,
    "10-3-2": 5,
    "2*-3": -6,
    "- -3": 3,
    "5 % 3": 2,
    "-7 / 2": -3,
    "-7 % 4": 1,
    "(-7 % 4U) / -1": 0,
    "-8 / 2U": 0x7FFFFFFFFFFFFFFC,
    "-1 > 1": 0,
    "-1 > 1U": 1,
    "(.u64)-1 > 1": 1,
    "(.s64)0xffffffffffffffff > 1": 0,
    "0x7fffffffffffffff + 1 > 0": 0,
    "1 < 2 < 3": 1,
    "1 == 1 != 0": 1,
    "2 && 0 || 3": 1,
    "!3 + !0": 1,
    "~0 >> 60": 15,
    "(-1 & -1) >> 60": -1,
    "1<<65": 2,
    "1 << -1": -(1 << 63),
    "-1>>65": -1,
    "1 ? 2 : 0 ? 3 : 4": 2,
    "0 ? 2 : 0 ? 3 : 4": 4,
    "(1 ? -1 : 1U) >> 60": -1,
    "1.5 > 0.5": 1,
    "WARP_SZ << 1": 64,
    "0 ? WARP_SZ + 1 : WARP_SZ": 32,
    "1 ? WARP_SZ : 2": 32,
    "010+0b11": 11,
    "((((+7))))": 7,
}
FLOATS = {"1.0/4.0": 0.25, "-(1.5)": -1.5, "0d4000000000000000 * 2.0 - 1e1": -6.0, "1 ? 2.5 : 3.5": 2.5, "1e3": 1000.0}


def operand(text: str, opcode: str = "mov.b64 v,", declarations: str = "") -> object:
    """The last operand of an instruction that ends so."""
    body = f".visible .entry k() {{ .reg .b64 v; .shared .b8 s[64]; {opcode} {text}; ret; }}"
    module = parse(f"{HEADER}{declarations}\n{body}\n")
    return next(module.functions["k"].instructions()).operands[-1]


@pytest.mark.parametrize("text", WHOLE)
def test_whole_numbers(text: str) -> None:
    assert operand(text) == Imm(WHOLE[text])


@pytest.mark.parametrize("text", FLOATS)
def test_floats(text: str) -> None:
    (bits,) = struct.unpack("<Q", struct.pack("<d", FLOATS[text]))
    assert operand(text) == Imm(bits, 64)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[s+4*2]", Address(Symbol("s"), 8)),
        ("[s+(1<<2)-4]", Address(Symbol("s"), 0)),
        ("[v+2*4]", 8),
        ("[v+-4]", -4),
        ("[v-4]", -4),
        ("[(1<<4)|2]", Address(Imm(18))),
    ],
)
def test_addresses(text: str, found: object) -> None:
    got = operand(text, "ld.shared.b64 v,")
    assert isinstance(got, Address)
    assert (got.offset if isinstance(found, int) else got) == found


def test_arguments_of_a_call_are_none() -> None:
    text = "call.uni f, ((1<<2), 3);"
    module = parse(f"{HEADER}.visible .entry k() {{ {text} ret; }}\n")
    assert next(module.functions["k"].instructions()).operands[-1] == Arguments((Imm(4), Imm(3)))


def test_extents_and_initial_values() -> None:
    module = parse(
        f"{HEADER}.global .b8 a[4*3]; .const .align 4 .u32 b[1<<1] = {{WARP_SZ/2, -1 & 0xff}};\n"
        ".global .u64 p = a+4*2; .global .f32 f = 1.5*2.0;\n"
    )
    variables = module.variables
    assert variables["a"].size_bytes == 12
    assert variables["b"].initial == struct.pack("<2I", 16, 255)
    assert [link.addend for link in variables["p"].links] == [8]
    assert variables["f"].initial == struct.pack("<f", 3.0)


def test_they_run() -> None:
    out = np.zeros(3, np.uint32)
    run_body(
        """
        setp.ne.u32 p1, tid, (1<<3)-8; @p1 ret; mov.u32 r1, s+4*2; mov.u32 r2, s;
        sub.u32 r1, r1, r2; st.global.u32 [out+0*4], r1; st.shared.u32 [s+(2<<2)], 0x10|5;
        ld.shared.u32 r3, [r2+4*2]; st.global.u32 [out+1*4], r3; add.u32 r3, r3, 4*-3; st.global.u32 [out+8], r3;
        """,
        {"out": out},
        ".shared .align 16 .b8 s[4*4];",
    )
    assert out.tolist() == [8, 21, 9]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("5/0", "a division by zero"),
        ("5 % 0", "a division by zero"),
        ("1.0+2", "whole numbers beside others"),
        ("~1.5", "'~' of what is no whole number"),
        ("1.5 << 2.5", "'<<' of what is no whole number"),
        ("(.u64)1.5", "a cast of what is no whole number"),
        ("1.5 ? 1 : 2", "a condition that is no whole number"),
        ("1 ? 2", "expected ':'"),
        ("(1+2", r"expected '\)'"),
        ("4+s", "expected a number, found 's'"),
        ("0f3f800000+1.0", "expected"),
        ("5%3", "expected"),
        ("(" * 80 + "1" + ")" * 80, "more than 64 levels"),
        ("-" * 300 + "1", "more than 64 levels"),
    ],
)
def test_what_is_no_constant_expression(text: str, words: str) -> None:
    with pytest.raises(CompileError, match=f"PTX line 5: .*{words}"):
        operand(text)


def test_an_array_has_no_negative_extent() -> None:
    with pytest.raises(CompileError, match="an array of -3 elements"):
        parse(f"{HEADER}.global .b8 a[1-4];\n")
