"""The table of opcodes: complete, and what it says is what instructions are told."""

from __future__ import annotations

import pytest

from harness.emulator.codegen.emitters import emits, supported_opcodes
from harness.emulator.ptx.opcodes import (
    ATOMIC,
    COPY,
    LOAD,
    LOAD_ROWS,
    OPCODES,
    STORE,
    UNKNOWN,
    Flow,
    facts_of,
    row_name,
)

LOWERED = {"bra", "brx", "ret", "exit"}
"""The ends of blocks, which `codegen/kernel.py` emits."""


def test_every_row_has_an_emitter_and_every_emitter_a_row() -> None:
    assert set(supported_opcodes()) == set(OPCODES) - LOWERED


def test_an_emitter_without_a_row_is_refused() -> None:
    with pytest.raises(AssertionError, match="teleport"):
        emits("teleport")(lambda lanes, instruction: None)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("ld.global.f32", "ld"),
        ("add.s32", "add.int"),
        ("add.rn.ftz.f32", "add.float"),
        ("min.NaN.bf16x2", "min.half"),
        ("cvt.rn.f16.f32", "cvt"),
        ("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16", "wmma.load"),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", "wmma.mma"),
        ("teleport.b32", "teleport"),
        ("wmma", "wmma"),
    ],
)
def test_an_instruction_has_one_row(form: str, name: str) -> None:
    opcode, *modifiers = form.split(".")
    assert row_name(opcode, modifiers) == name
    assert facts_of(opcode, modifiers) is OPCODES.get(name, UNKNOWN)


def test_who_touches_which_memory() -> None:
    """Against the PTX ISA, 9.7.9, 9.7.13 and 9.7.14: an opcode that is left out here would not be counted."""
    touching = {name: row.memory for name, row in OPCODES.items() if row.memory is not None}
    assert touching == {
        **dict.fromkeys(("ld", "ldu", "wmma.load"), LOAD),
        **dict.fromkeys(("st", "wmma.store"), STORE),
        **dict.fromkeys(("atom", "red"), ATOMIC),
        "cp": COPY,
        "ldmatrix": LOAD_ROWS,
        "stmatrix": OPCODES["stmatrix"].memory,
    }
    assert [memory.verb for memory in (LOAD, STORE, ATOMIC, COPY)] == ["load", "store", "atomic", "asynchronous copy"]
    assert {name for name, row in OPCODES.items() if row.flow is not Flow.NEXT} == {
        *LOWERED, "bar", "barrier", "nanosleep",
    }  # fmt: skip
