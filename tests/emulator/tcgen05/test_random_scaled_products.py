"""tcgen05.mma with block scaling on numbers of any magnitude, and random programs of any forms.

Sums of the former are within what the tensor core may cut off; those of the latter are exact.
"""

from __future__ import annotations

import numpy as np
import pytest
from lanes import exhaustive, exhaustive_unless
from operand_formats import TYPES, Array, packed_units
from product_cases import A_COLUMN, SHARED_BYTES, random_matrix
from product_model import Bytes, accumulator_values
from scaled_cases import (
    PAIRED,
    SCALE_A_COLUMN,
    SCALE_B_COLUMN,
    SCALED,
    check_scaled,
    random_ids,
    random_scaled,
    with_scales,
)
from scaled_model import FORMATS, VECTORS, ScaledDescriptor, ScaledProduct, scaled_product
from shared_operands import SWIZZLES
from tensor_machine import WAIT, Step
from tensor_memory_model import COLUMNS, LANES
from test_random_products import CUT

N = 64
SPREAD = {"ue8m0": np.arange(127 - 20, 127 + 21), "ue4m3": np.arange(1, 0x7F)}
"""Codes of scale factors: 2^-20 to 2^20, and all that are neither 0 nor NaN."""
CASES = [(kind, vector, scale, "e2m1", "e2m1") for kind, vector, scale in FORMATS[1:]]
CASES += [("mxf8f6f4", "", "ue8m0", a, b) for a, b in (("e4m3", "e3m2"), ("e2m3", "e5m2"), ("e2m1", "e2m3"))]


def any_codes(rng: np.random.Generator, form: ScaledDescriptor) -> Bytes:
    """Shared memory of any finite elements: of A in its first half, of B in its second half."""
    if form.is_packed:
        return rng.integers(0, 256, SHARED_BYTES).astype(np.uint8)
    halves = []
    for name in (form.a, form.b):
        element = TYPES[name]
        codes: Array = np.arange(1 << element.bits).astype(np.uint8)
        codes = codes[np.isfinite(element.decode(codes))]
        halves.append(packed_units(rng.choice(codes, (SHARED_BYTES // 32, 16)), element.bits).reshape(-1))
    return np.concatenate(halves)


@pytest.mark.parametrize(
    ("kind", "vector", "scale", "a", "b"), exhaustive_unless(lambda case: case in (CASES[3], CASES[4]), CASES)
)
def test_random_values(kind: str, vector: str, scale: str, a: str, b: str):
    """Any elements and scale factors; each product begins with sums of its own."""
    rng = np.random.default_rng(len(a + b + kind))
    form = ScaledDescriptor(kind, a, b, 128, N, scale)
    vector = vector or next(iter(VECTORS[kind]))
    program: list[ScaledProduct | Step | str] = []
    steps = []
    shared = any_codes(rng, form)
    memory = rng.standard_normal((LANES, COLUMNS)).astype(np.float32).view(np.uint32)
    for columns in (slice(SCALE_A_COLUMN, SCALE_B_COLUMN), slice(SCALE_B_COLUMN, COLUMNS)):
        memory = with_scales(rng, memory, SPREAD[scale], columns)
    for i in range(4):
        swizzles = [int(x) for x in rng.choice(list(SWIZZLES.values()), 2)]
        places = [
            random_matrix(rng, which, rows, swizzle).encode()
            for which, (rows, swizzle) in enumerate(zip((LANES, N), swizzles))
        ]
        scales = SCALE_A_COLUMN + 4 * i, SCALE_B_COLUMN + 2 * i
        steps.append(ScaledProduct(N * i % A_COLUMN, places[0], places[1], form, *scales, vector))
        program += [steps[-1], WAIT]
    (after,) = SCALED.run(program, [shared], [memory])
    for step in steps:
        result = scaled_product(step, [memory], [shared])
        found = accumulator_values(after[result.lane, result.column], "f32")
        bound = CUT * result.magnitude
        wrong = ~(np.abs(found - result.exact) <= bound)
        assert not wrong.any(), f"{wrong.sum()} of {wrong.size}: {found[wrong][0]} instead of {result.exact[wrong][0]}"
        # Zeros, or D alone, are no answer.
        assert (np.abs(result.exact) > 4 * bound).mean() > 0.5


def random_form(
    rng: np.random.Generator, kind: str, vector: str, scale: str, a: str, b: str, m: int
) -> ScaledDescriptor:
    """Any N, ids, signs, and transpositions of elements of 8 bits."""
    turned = [int(TYPES[name].bits == 8 and rng.integers(2)) for name in (a, b)]
    step = (16 if turned[1] else 8) * m // 128
    n = step * int(rng.integers(1, 1 + 256 // step))
    signs = rng.integers(0, 2, 2).tolist()
    ids = random_ids(rng, kind, vector)
    return ScaledDescriptor(kind, a, b, m, n, scale, ids, (signs[0], signs[1]), (turned[0], turned[1]))


@pytest.mark.parametrize("trial", exhaustive(range(60)))
def test_random_programs(trial: int):
    """Every third is of two blocks. Operands are of the same types, everything else is drawn for each product."""
    rng = np.random.default_rng(trial)
    blocks = 2 if trial % 3 == 2 else 1
    kind, vector, scale = FORMATS[int(rng.choice([0, 3, 4] if blocks == 2 else range(len(FORMATS))))]
    names = [name for name, element in TYPES.items() if element.kind == "f8f6f4"]
    a, b = (str(x) for x in rng.choice(names, 2)) if kind == "mxf8f6f4" else ("e2m1", "e2m1")
    steps = []
    for _ in range(8):
        form = random_form(rng, kind, vector, scale, a, b, 128 * blocks)
        swizzles = rng.choice(list(SWIZZLES.values()), 2).tolist()
        bases = [int(rng.integers(0, 8)) if swizzle and rng.integers(2) else 0 for swizzle in swizzles]
        steps.append(
            random_scaled(
                rng,
                form,
                vector if kind != "mxf8f6f4" else "",
                int(rng.integers(0, 257 - form.n)),
                (swizzles[0], swizzles[1]),
                (bases[0], bases[1]),
                bool(rng.integers(2)) and not form.transpose[0],
                blocks,
                bool(rng.integers(4)),
            )
        )
    check_scaled(PAIRED if blocks == 2 else SCALED, steps, rng, seed=trial, shuffle=trial % 2 == 1)
