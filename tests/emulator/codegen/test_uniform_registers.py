"""Registers in which all lanes agree: which they are, and that code that relies on it computes the same."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from single_opcode import HEADER, run_body

from harness.emulator.codegen.kernel import generate
from harness.emulator.codegen.uniform_registers import uniform_registers
from harness.emulator.instruments import Instruments
from harness.emulator.native.tier import Tier
from harness.ptx.blocks import build_graph, live_registers
from harness.ptx.parsing.parser import parse


def uniform(body: str) -> set[str]:
    """Which registers %r1 to %r8 in these statements are uniform. %p1 varies among lanes, %p2 does not."""
    text = f"""{HEADER}
.visible .entry k(.param .u64 x, .param .u32 n) {{
  .reg .pred %p<9>; .reg .b32 %r<9>, %t<3>; .reg .b64 %rd<3>; .reg .f32 %f<3>;
  mov.u32 %t1, %tid.x; ld.param.u32 %t2, [n]; ld.param.u64 %rd1, [x];
  setp.lt.u32 %p1, %t1, 7; setp.lt.u32 %p2, %t2, 7;
  {body}
  ret;
}}"""
    function = parse(text).functions["k"]
    graph = build_graph(function)
    return set(uniform_registers(function, graph, live_registers(graph))) & set(re.findall(r"%r\d", body))


KEEP = "st.global.u32 [%rd1], %r1; st.global.u32 [%rd1+4], %r2;"
CASES = {
    "parameters, literals and the block's coordinates": (
        "ld.param.u32 %r1, [n]; mov.u32 %r2, %ctaid.y; mad.lo.u32 %r3, %r1, %r2, 5; mov.u32 %r4, %ntid.x;",
        {"%r1", "%r2", "%r3", "%r4"},
    ),
    "threads and memory": (
        "mov.u32 %r1, %tid.x; add.u32 %r2, %r1, 1; ld.global.u32 %r3, [%rd1]; mov.u32 %r4, %laneid;"
        "mov.u32 %r5, %clock;",
        set(),
    ),
    "unwritten": ("add.u32 %r1, %r2, 1;", set()),
    "warps": ("shfl.sync.idx.b32 %r1, 1, 0, 31, -1; vote.sync.ballot.b32 %r2, %p2, -1;", set()),
    "the carry": ("add.cc.u32 %r1, 1, 2; addc.u32 %r2, 1, 2;", set()),
    "guards": ("mov.u32 %r1, 1; mov.u32 %r2, 1; @%p1 mov.u32 %r1, 2; @%p2 mov.u32 %r2, 2;", {"%r2"}),
    "sides of a branch on which lanes agree": (
        f"mov.u32 %r1, 1; mov.u32 %r2, 1; @%p2 bra ON; mov.u32 %r1, 2; ON: {KEEP}", {"%r1", "%r2"}
    ),
    "sides of another branch": (
        f"mov.u32 %r1, 1; mov.u32 %r2, 1; @%p1 bra ON; mov.u32 %r1, 2; add.u32 %r3, %r2, 5; ON: {KEEP}",
        {"%r2", "%r3"},
    ),
    "both sides the same register": (
        f"mov.u32 %r2, 1; @%p1 bra A; mov.u32 %r1, 2; bra ON; A: mov.u32 %r1, 3; ON: {KEEP}", {"%r2"}
    ),
    "a loop that all lanes leave together": (
        f"mov.u32 %r1, 0; mov.u32 %r2, 0; L: add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 9; @%p3 bra L; {KEEP}",
        {"%r1", "%r2"},
    ),
    "the same behind a guard that ends some threads": (
        f"@%p1 bra END; mov.u32 %r1, 0; mov.u32 %r2, 0; L: add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 9; @%p3 bra L;"
        f"{KEEP} END:",
        {"%r1", "%r2"},
    ),
    "a loop that lanes leave one after the other": (
        f"mov.u32 %r1, 0; mov.u32 %r2, 0; L: add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, %t1; @%p3 bra L; {KEEP}",
        {"%r2"},
    ),
    "a loop in which lanes part": (
        "mov.u32 %r1, 0; mov.u32 %r2, 0; L: add.u32 %r1, %r1, 1; @%p1 bra ON; add.u32 %r2, %r2, 1;"
        f"ON: setp.lt.u32 %p3, %r1, 9; @%p3 bra L; {KEEP}",
        set(),
    ),
    "a predicate that follows from another": (
        f"mov.u32 %r1, 0; mov.u32 %r2, 0; setp.eq.or.u32 %p3, %t2, 1, %p1; @%p3 bra ON; mov.u32 %r1, 1; ON: {KEEP}",
        {"%r2"},
    ),
    "a table": (
        "TABLE: .branchtargets A, B; mov.u32 %r1, 0; mov.u32 %r2, 0; brx.idx %t1, TABLE; A: mov.u32 %r1, 1;"
        f"B: {KEEP}",
        {"%r2"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_which_registers_are_uniform(name: str) -> None:
    body, expected = CASES[name]
    assert uniform(body) == expected


def test_arithmetic_on_them_is_scalar_unless_instruments_watch_registers() -> None:
    text = f"""{HEADER}
.visible .entry k(.param .u64 x, .param .u32 n) {{
  .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [x]; mov.u32 %r1, 0;
  L: add.u32 %r1, %r1, 77; setp.lt.u32 %p1, %r1, 770; @%p1 bra L;
  st.global.u32 [%rd1], %r1; ret;
}}"""
    for instruments, outlined in ((Instruments(), False), (Instruments(sanitizer=True), False), (Instruments(), True)):
        body = generate(parse(text), "k", instruments, outlined).body
        is_plain = not outlined and not instruments.sanitizer
        assert (" = add i32 " in body and ", 77" in body) == is_plain, instruments


def test_lanes_that_wait_may_have_another_value() -> None:
    """Two halves of the warp count in the same register, and each has its own predicates."""
    out = np.zeros(32, np.uint32)
    run_body(
        """
        mul.wide.u32 q1, tid, 4; add.u64 q1, q1, out;
        setp.lt.u32 p1, tid, 16; @p1 bra OTHERS;
        mov.u32 r1, 5; setp.eq.u32 p3, r1, 5; setp.ne.u32 p4, r1, 5;
        FIRST: add.u32 r1, r1, 3; setp.lt.u32 p2, r1, 20; @p2 bra FIRST;
        @!p3 add.u32 r1, r1, 1000; @p4 add.u32 r1, r1, 2000; mov.u32 r2, r1; bra STORE;
        OTHERS: mov.u32 r1, 100; setp.ne.u32 p3, r1, 100; setp.eq.u32 p4, r1, 100;
        SECOND: add.u32 r1, r1, 1; setp.lt.u32 p2, r1, 120; @p2 bra SECOND;
        @p3 add.u32 r1, r1, 1000; @!p4 add.u32 r1, r1, 2000;
        mov.u32 r2, r1;
        STORE: st.global.u32 [q1], r2;
        """,
        {"out": out},
        tier=Tier.OPTIMIZED,
    )
    assert out.tolist() == [120] * 16 + [20] * 16


COUNTERS = ("r20", "r21", "r22")
REGISTERS = [f"r{n}" for n in range(7)]


class Program:
    """A random structured program over `REGISTERS`, of which r0 differs among lanes."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._labels = 0
        self._loops = 0
        first = ["mov.u32 r0, tid;", *(f"mov.u32 {r}, {n};" for n, r in enumerate((*REGISTERS, *COUNTERS)) if n)]
        last = [f"st.global.u32 [q1+{128 * n}], {r};" for n, r in enumerate((*REGISTERS, *COUNTERS))]
        address = "mul.wide.u32 q1, tid, 4; add.u64 q1, q1, out;"
        self.text = "\n".join([*first, *self._block(3), address, *last])

    def _label(self) -> str:
        self._labels += 1
        return f"L{self._labels}"

    def _source(self) -> str:
        # Mostly registers that start out uniform.
        return self._random.choice([*REGISTERS[1:], *REGISTERS[1:], *COUNTERS, "r0", "3", "10"])

    def _assignment(self) -> str:
        word = self._random.choice(["add.u32", "sub.u32", "xor.b32", "and.b32", "mul.lo.u32", "min.s32", "shl.b32"])
        return f"{word} {self._random.choice(REGISTERS[1:])}, {self._source()}, {self._source()};"

    def _condition(self) -> str:
        word = self._random.choice(["lt.s32", "eq.u32", "gt.u32", "ne.u32"])
        return f"and.b32 r30, {self._source()}, 7; setp.{word} p1, r30, {self._random.randrange(8)};"

    def _block(self, depth: int) -> list[str]:
        lines: list[str] = []
        for _ in range(self._random.randrange(2, 5)):
            kind = self._random.choice(["assign", "guard", "if", "if", "loop", "loop"]) if depth else "assign"
            lines += getattr(self, f"_{kind}")(depth)
        return lines

    def _assign(self, depth: int) -> list[str]:
        return [self._assignment()]

    def _guard(self, depth: int) -> list[str]:
        return [self._condition(), f"@p1 {self._assignment()}"]

    def _if(self, depth: int) -> list[str]:
        other, end = self._label(), self._label()
        yes, no = self._block(depth - 1), self._block(depth - 1)
        return [self._condition(), f"@p1 bra {other};", *yes, f"bra {end};", f"{other}:", *no, f"{end}:"]

    def _loop(self, depth: int) -> list[str]:
        """At most five iterations, with `continue` and `break` at random."""
        counter, start, again, end = COUNTERS[depth - 1], self._label(), self._label(), self._label()
        lines = [f"mov.u32 {counter}, 0;", f"{start}:", *self._block(depth - 1)]
        for target in (again, end):
            if self._random.random() < 0.5:
                lines += [self._condition(), f"@p1 bra {target};", *self._block(depth - 1)]
        trip = f"{again}: add.u32 {counter}, {counter}, 1; setp.lt.u32 p1, {counter}, {self._random.randrange(1, 6)};"
        return [*lines, trip, f"@p1 bra {start};", f"{end}:"]


@pytest.mark.compiles
@pytest.mark.parametrize("seed", range(16))
def test_random_programs_compute_the_same_in_both_tiers(seed: int) -> None:
    """The baseline knows no uniform registers."""
    text = Program(seed).text
    found = []
    for tier in Tier:
        out = np.zeros((len(REGISTERS) + len(COUNTERS), 32), np.uint32)
        run_body(text, {"out": out}, tier=tier)
        found.append(out)
    assert np.array_equal(*found), text
