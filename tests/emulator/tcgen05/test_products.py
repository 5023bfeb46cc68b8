"""tcgen05.mma of one block: types, layouts of A, B and D, and options, compared with the model in all cells.

PTX ISA, section 9.7.16.10. Sums are exact but for `test_random_values`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
from lanes import is_exhaustive
from operand_formats import TYPES
from product_cases import SHARED_BYTES, Expected, check_products, random_product
from product_model import InstructionDescriptor
from shared_operands import ATOMS_OF_32, SWIZZLES
from tensor_machine import Form, TensorMachine
from tensor_memory_model import COLUMNS, LANES

FLOATS = TensorMachine(
    (
        *(Form(f"mma.kind::{kind}", tensor) for kind in ("f16", "tf32", "f8f6f4") for tensor in (False, True)),
        Form("mma.kind::f16", masked=True),
        Form("mma.kind::tf32", masked=True, scale=15),
        Form("mma.kind::f16", scale=3),
        Form("mma.kind::f16", True, masked=True, scale=1),
    )
)
INTEGERS = TensorMachine(tuple(Form("mma.kind::i8", tensor, masked) for tensor, masked in ((0, 0), (1, 0), (0, 1))))


def machine_of(form: InstructionDescriptor) -> TensorMachine:
    return INTEGERS if form.kind == "i8" else FLOATS


SMALL_FLOATS = [name for name, element in TYPES.items() if element.kind == "f8f6f4"]
FACTORS = [
    ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
    *((d, a, b) for d in ("f32", "f16") for a, b in itertools.product(SMALL_FLOATS, repeat=2)),
    *(("s32", a, b) for a, b in itertools.product(("s8", "u8"), repeat=2)),
]  # fmt: skip


@pytest.mark.parametrize(("d", "a", "b"), FACTORS)
def test_types(d: str, a: str, b: str):
    """With A in shared memory and in tensor memory; each sign of A and B that the kind allows; added to D or not."""
    rng = np.random.default_rng(len(d + a + b))
    steps = []
    for i, signs in enumerate(itertools.product((0, 1), repeat=2) if d != "s32" else [(0, 0)] * 2):
        form = InstructionDescriptor(d, a, b, 128, 16, signs)
        for tensor in (False, True):
            steps.append(random_product(rng, form, 32 * i + 16 * tensor, in_tensor_memory=tensor, accumulates=i != 1))
    check_products(machine_of(form), steps, rng)


LAYOUTS = ["f16", "bf16", "e4m3", "s8", "tf32", "e2m3", "e2m1"]


def layouts(name: str) -> Iterable[tuple[tuple[int, int], tuple[int, int]]]:
    """Transpositions and swizzles of A and B (Table 54)."""
    numbers = list(SWIZZLES.values())
    for turned in itertools.product((0, 1), repeat=2):
        if TYPES[name].bits < 8 and any(turned):
            continue
        choices = [[ATOMS_OF_32] if which and name == "tf32" else numbers for which in turned]
        yield from ((turned, swizzles) for swizzles in itertools.product(*choices))


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_in_shared_memory(name: str):
    """Every swizzle and major-ness of A with every one of B; patterns that begin anywhere, by their base offset."""
    rng = np.random.default_rng(TYPES[name].size)
    steps = []
    d = "s32" if name == "s8" else "f32"
    for i, (turned, swizzles) in enumerate(layouts(name)):
        form = InstructionDescriptor(d, name, name, (64, 128)[i % 2], 32, transpose=turned)
        bases = [int(rng.integers(0, 8)) if swizzle > ATOMS_OF_32 and i % 3 == 0 else 0 for swizzle in swizzles]
        steps.append(random_product(rng, form, 32 * (i % 8), swizzles=swizzles, bases=(bases[0], bases[1])))
    check_products(machine_of(form), steps, rng)


WIDTHS = {"f16": range(8, 257, 8), "e3m2": range(8, 257, 8), "s8": [8, 16, 24, *range(32, 257, 16)]}


@pytest.mark.parametrize("m", [64, 128])
@pytest.mark.parametrize("name", WIDTHS)
def test_columns(m: int, name: str):
    """Every N, with D in half of the lanes from either half on, or in all of them."""
    rng = np.random.default_rng(m)
    steps = []
    some = (16, 32, 240) if name == "s8" else (8, 24, 96, 256)
    for i, n in enumerate(WIDTHS[name] if is_exhaustive() else some):
        form = InstructionDescriptor("s32" if name == "s8" else "f32", name, name, m, n)
        lane = 16 * (i % 2) if m == 64 else 0
        steps.append(random_product(rng, form, int(rng.integers(0, 257 - n)), lane, in_tensor_memory=i % 3 == 0))
    check_products(machine_of(form), steps, rng)


def test_lanes_and_scales():
    """Disabled lanes keep D. D is divided by a power of two before the sum is added; not if nothing is accumulated."""
    rng = np.random.default_rng(3)
    masks = [tuple(int(x) for x in rng.integers(0, 1 << 32, 4)) for _ in range(4)]
    half, single = (
        InstructionDescriptor("f32", "f16", "f16", 128, 32),
        InstructionDescriptor("f16", "f16", "f16", 64, 16),
    )
    steps = [
        random_product(rng, half, 0, disabled=masks[0]),
        random_product(rng, half, 32, disabled=(0xFFFFFFFF, 0, 1, 1 << 31)),
        random_product(rng, half, 64, scale=3),
        random_product(rng, half, 64, scale=3, accumulates=False),
        random_product(rng, half, 96, in_tensor_memory=True, disabled=masks[1], scale=1),
    ]
    check_products(FLOATS, steps, rng)
    steps = [
        random_product(rng, single, 0, 16, disabled=masks[2]),
        random_product(rng, single, 16, disabled=masks[3], accumulates=False),
    ]
    check_products(FLOATS, steps, rng)
    fine = InstructionDescriptor("f32", "tf32", "tf32", 128, 32)
    check_products(FLOATS, [random_product(rng, fine, 0, disabled=masks[2], scale=15)], rng)
    whole = InstructionDescriptor("s32", "s8", "u8", 128, 32)
    check_products(INTEGERS, [random_product(rng, whole, 0, disabled=masks[1])], rng)


@pytest.mark.parametrize("saturate", [0, 1])
def test_integers_beyond_32_bits(saturate: int):
    """They are clipped where the descriptor says so, and wrap otherwise."""
    rng = np.random.default_rng(saturate)
    form = InstructionDescriptor("s32", "s8", "s8", 128, 256, saturate=saturate)
    step = random_product(rng, form)
    shared = rng.integers(0, 256, SHARED_BYTES).astype(np.uint8)
    near = rng.choice(np.array([2**31 - 1, -(2**31)], np.int64), (LANES, COLUMNS)).astype(np.int32).view(np.uint32)
    expected = Expected([near])
    expected.multiply(step, [shared])
    expected.check(INTEGERS.run([step], [shared], [near]), step)


def test_products_on_one_accumulator_run_in_order():
    """Without a wait in between: same accumulator and shape (9.7.16.6.2)."""
    rng = np.random.default_rng(4)
    form = InstructionDescriptor("f32", "f16", "f16", 128, 64)
    steps = [random_product(rng, form, 8, accumulates=i > 0, in_tensor_memory=i == 2) for i in range(4)]
    check_products(FLOATS, steps, rng, in_turn=False)
