"""Calls through addresses of functions: prototypes, tables of targets, tables in memory, addresses of no function."""

from __future__ import annotations

import numpy as np
import pytest
from single_opcode import run_body

from harness.support.errors import KernelFault

FUNCTIONS = """
.func (.param .b32 result) twice(.param .b32 value) {
    .reg .b32 v; ld.param.b32 v, [value]; add.u32 v, v, v; st.param.b32 [result], v; ret; }
.func (.param .b32 result) next(.param .b32 value) {
    .reg .b32 v; ld.param.b32 v, [value]; add.u32 v, v, 1; st.param.b32 [result], v; ret; }
.func (.param .b32 result) sum(.param .b32 a, .param .b32 b) {
    .reg .b32 v; ld.param.b32 v, [a]; st.param.b32 [result], v; ret; }
.func (.reg .b32 result) square(.reg .b32 value) { mul.lo.u32 result, value, value; ret; }
.func again(.param .b64 f) {
    .reg .b64 f0; ld.param.b64 f0, [f];
    { .param .b64 x; st.param.b64 [x], f0; HOW: .callprototype _ (.param .b64 _); call f0, (x), HOW; } ret; }
.global .u64 table[4] = {twice, next, sum, square};
.global .u64 loops = again;
"""
CALL = """
    {{ .param .b32 x; .param .b32 y; st.param.b32 [x], tid; {table}
       {guard}call (y), q3, (x), HOW; ld.param.b32 r1, [y]; }}
"""
PROTOTYPE = "HOW: .callprototype (.param .b32 _) _ (.param .b32 _);"
STORE = "mul.wide.u32 q1, tid, 4; add.u64 q1, q1, out; st.global.u32 [q1], r1;"
ODD = "and.b32 r2, tid, 1; mul.wide.u32 q2, r2, 8; mov.u64 q3, table; add.u64 q3, q3, q2; ld.global.u64 q3, [q3];"


def run(body: str) -> list[int]:
    out = np.full(32, 0xDEAD, np.uint32)
    run_body(body + STORE, {"out": out}, FUNCTIONS)
    return [int(n) for n in out]


@pytest.mark.parametrize("table", [PROTOTYPE, "HOW: .calltargets next, twice;"])
def test_each_lane_calls_its_own_function(table: str) -> None:
    expected = [lane + 1 if lane % 2 else 2 * lane for lane in range(32)]
    assert run(ODD + CALL.format(table=table, guard="")) == expected


def test_a_call_that_some_lanes_skip() -> None:
    body = "setp.lt.u32 p1, tid, 5; mov.u64 q3, twice;" + CALL.format(
        table=f"st.param.b32 [y], 7; {PROTOTYPE}", guard="@p1 "
    )
    assert run(body) == [2 * lane if lane < 5 else 7 for lane in range(32)]


def test_parameters_in_registers() -> None:
    body = "mov.u64 q3, square; HOW: .callprototype (.reg .b32 _) _ (.reg .b32 _); call (r1), q3, (tid), HOW;"
    assert run(body.replace("tid", "r2").replace("mov.u64", "mov.u32 r2, tid; mov.u64", 1)) == [
        n * n for n in range(32)
    ]


@pytest.mark.parametrize(
    ("address", "words"),
    [("mov.u64 q3, 0;", "address 0x0"), ("mov.u64 q3, sum;", "no function with these parameters")],
)
def test_an_address_of_no_such_function_is_a_fault(address: str, words: str) -> None:
    with pytest.raises(KernelFault, match=words) as caught:
        run(address + CALL.format(table=PROTOTYPE, guard=""))
    assert caught.value.kind == "no function"


def test_recursion_through_an_address_is_a_fault() -> None:
    body = "{ .param .b64 x; mov.u64 q3, again; st.param.b64 [x], q3; call.uni again, (x); }"
    with pytest.raises(KernelFault, match="recursion"):
        run(body)


def test_a_branch_over_an_indirect_call_runs_without_it() -> None:
    body = "setp.ne.u64 p1, q3, q3; mov.u64 q3, 0; mov.u32 r1, 3; @!p1 bra OVER;" + CALL.format(
        table=PROTOTYPE, guard=""
    )
    assert run(body + "OVER:") == [3] * 32
