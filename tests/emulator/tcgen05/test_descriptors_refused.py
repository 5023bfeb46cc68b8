"""Descriptors that the PTX ISA does not allow are faults that name the line: sections 9.7.16.2.1 and 9.7.16.4."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from planted_kernel import DESCRIPTOR
from product_model import InstructionDescriptor, Product
from tensor_memory_model import COLUMNS, LANES
from test_products import FLOATS, INTEGERS

from harness.support.errors import KernelFault

FORM = InstructionDescriptor("f32", "f16", "f16", 128, 32)
KINDS = {"f16": FORM, "tf32": InstructionDescriptor("f32", "tf32", "tf32", 128, 32),
         "f8f6f4": InstructionDescriptor("f32", "e4m3", "e4m3", 128, 32),
         "i8": InstructionDescriptor("s32", "s8", "s8", 128, 32)}  # fmt: skip
FIELDS = {"d": (4, 2), "a": (7, 3), "b": (10, 3), "n": (17, 6), "m": (24, 5), "r6": (6, 1), "r23": (23, 1),
          "sparse": (2, 1), "saturate": (3, 1), "negate": (13, 1)}  # fmt: skip
"""First bit and number of bits in Table 42."""


@dataclasses.dataclass(frozen=True)
class Word:
    """An instruction descriptor of any bits."""

    kind: str
    word: int

    def encode(self) -> int:
        return self.word


def run(kind: str, form: int, a: int = DESCRIPTOR, b: int = DESCRIPTOR) -> tuple[str, int]:
    """The message of the fault of a product, and the line of its instruction."""
    machine = INTEGERS if kind == "i8" else FLOATS
    step = Product(0, a, b, Word(kind, form))  # type: ignore[arg-type]
    shared, memory = np.zeros(16384, np.uint8), np.zeros((LANES, COLUMNS), np.uint32)
    lines = machine.source().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if f"kind::{kind} [%0], %1, %2, %3, p;" in text)
    with pytest.raises(KernelFault) as caught:
        machine.run([step], [shared], [memory])
    return str(caught.value), line


def changed(kind: str, **fields: int) -> int:
    """A valid instruction descriptor with other fields."""
    word = KINDS[kind].encode()
    for name, value in fields.items():
        bit, size = FIELDS[name]
        word = word & ~((1 << size) - 1 << bit) | value << bit
    return word


WRONG = [
    ("f16", {"m": 2}), ("f16", {"m": 6}), ("f16", {"m": 16}), ("f16", {"n": 0}), ("f16", {"n": 33}),
    ("f16", {"a": 2, "b": 2}), ("f16", {"d": 2}), ("f16", {"d": 0, "a": 1, "b": 1}), ("f16", {"a": 3}),
    ("f16", {"sparse": 1}), ("f16", {"r6": 1}), ("f16", {"r23": 1}), ("f16", {"saturate": 1}),
    ("tf32", {"a": 0}), ("tf32", {"d": 0}), ("f8f6f4", {"a": 2}), ("f8f6f4", {"b": 6}), ("f8f6f4", {"d": 3}),
    ("i8", {"d": 1}), ("i8", {"a": 2}), ("i8", {"negate": 1}), ("i8", {"n": 5}), ("i8", {"n": 7}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fields"), WRONG)
def test_instruction_descriptors(kind: str, fields: dict[str, int]):
    """Wrong M, N and types, a sparse product without `.sp`, and reserved bits."""
    told, line = run(kind, changed(kind, **fields))
    assert f"planted.cu:{line} " in told and "descriptor" in told, told


@pytest.mark.parametrize("bits", [1 << 46, 1 << 47, 3 << 61, 5 << 61, 7 << 61, 1 << 53])
@pytest.mark.parametrize("which", ["a", "b"])
def test_shared_memory_descriptors(which: str, bits: int):
    """Bits 46 to 48 are 0b001, 53 to 60 are 0. Swizzles 3, 5 and 7 do not exist."""
    told, line = run("f16", FORM.encode(), **{which: DESCRIPTOR ^ bits})
    assert f"planted.cu:{line} " in told and "descriptor" in told, told


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_matrix_beyond_the_end_of_shared_memory(which: str):
    told, line = run("f16", FORM.encode(), **{which: DESCRIPTOR | 0x3E00})
    assert f"planted.cu:{line} " in told and "shared" in told, told


def test_a_matrix_of_which_the_last_row_is_beyond_the_end():
    """The stride leads out of 16 KiB of shared memory."""
    told, _ = run("f16", FORM.encode(), a=DESCRIPTOR | 0x800 >> 4 << 32)
    assert "shared" in told, told
