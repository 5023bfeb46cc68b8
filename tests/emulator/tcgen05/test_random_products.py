"""tcgen05.mma on numbers of any magnitude: sums are within what the tensor core may cut off."""

from __future__ import annotations

import numpy as np
import pytest
from operand_formats import TYPES, Array, packed_units
from product_cases import SHARED_BYTES
from product_model import InstructionDescriptor, Product, accumulator_values, accumulator_words, product
from shared_operands import SharedDescriptor
from tensor_machine import WAIT, Step
from tensor_memory_model import COLUMNS, LANES, address_of
from test_products import FLOATS

CUT = 2.0**-20
"""Of the sum of magnitudes. Hopper keeps 25 bits of the largest addend; no GPU of this architecture has been asked."""
N, STEPS = 64, 4


def normal(rng: np.random.Generator, name: str, size: int, d: str) -> Array:
    """Bytes of shared memory: normal numbers with exponents apart, whose sums are in the range of D."""
    element = TYPES[name]
    shape = size // 16, 16 // element.size
    spread = 8 if element.bits > 8 and d == "f32" else 2
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread, shape)
    largest = {"e4m3": 448, "e2m3": 7.5, "e3m2": 28, "e2m1": 6}.get(name, 1e4)
    patterns = element.encode(values.clip(-largest, largest))
    if name == "tf32":
        patterns &= np.uint32(0xFFFFE000)
    return packed_units(patterns, element.bits).reshape(-1)


@pytest.mark.parametrize(
    ("d", "a", "b"),
    [("f32", "f16", "f16"), ("f32", "bf16", "bf16"), ("f16", "f16", "f16"), ("f32", "tf32", "tf32"),
     ("f32", "e4m3", "e5m2"), ("f16", "e5m2", "e4m3"), ("f32", "e3m2", "e2m3"), ("f16", "e2m1", "e5m2")],
)  # fmt: skip
def test_random_values(d: str, a: str, b: str):
    """Each product begins with sums of its own, so that one bound holds for each."""
    rng = np.random.default_rng(7)
    half = SHARED_BYTES // 2
    shared = np.concatenate([normal(rng, name, half, d) for name in (a, b)])
    form = InstructionDescriptor(d, a, b, 128, N)
    memory = accumulator_words(
        rng.standard_normal((LANES, COLUMNS)) * 2.0 ** rng.integers(-3, 4, (LANES, COLUMNS)), form
    )
    program: list[Product | Step | str] = []
    steps = []
    for i in range(STEPS):
        # A and B have rows of 128 bytes and take 32 of them in each step.
        places = [SharedDescriptor(half * which + 32 * i, 16, 1024, 2).encode() for which in (0, 1)]
        steps.append(Product(address_of(0, N * i), *places, form))
        program += [steps[-1], WAIT]
    (after,) = FLOATS.run(program, [shared], [memory])
    for step in steps:
        result = product(step, [memory], [shared])
        found = accumulator_values(after[result.lane, result.column], d)
        bound = CUT * result.magnitude
        if d == "f16":
            bound += 2.0**-10 * np.abs(result.exact) + 2.0**-24
        wrong = np.abs(found - result.exact) > bound
        assert not wrong.any(), f"{wrong.sum()} of {wrong.size}: {found[wrong][0]} instead of {result.exact[wrong][0]}"
        # Zeros, or D alone, are no answer.
        assert (np.abs(result.exact) > 4 * bound).mean() > 0.5
