"""tcgen05.mma.ws: D in the layouts D, E and G, compared with the model in all cells.

PTX ISA, section 9.7.16.10.9.3; the layouts are in 9.7.16.10.5.4, .5 and .7.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from product_cases import check_products, random_product
from product_model import InstructionDescriptor
from tensor_machine import Form, TensorMachine

WEIGHTS = TensorMachine(
    (*(Form(f"mma.ws.kind::{kind}") for kind in ("f16", "tf32", "f8f6f4", "i8")), Form("mma.ws.kind::f16", True))
)


@pytest.mark.parametrize(
    ("d", "a", "b"),
    [
        ("f32", "f16", "f16"),
        ("f32", "tf32", "tf32"),
        ("f16", "e4m3", "e5m2"),
        ("s32", "s8", "s8"),
        ("f32", "e2m1", "e3m2"),
    ],
)
def test_shapes(d: str, a: str, b: str):
    """Each M with each N; A in tensor memory for M = 128, where it has a row in each lane."""
    rng = np.random.default_rng(len(a))
    steps = []
    for m, n in itertools.product((32, 64, 128), (64, 128, 256)):
        form = InstructionDescriptor(d, a, b, m, n)
        tensor = m == 128 and a == "f16"
        column = int(rng.integers(0, 257 - n * m // 128))
        steps.append(random_product(rng, form, column, weights=True, in_tensor_memory=tensor, accumulates=n != 64))
    check_products(WEIGHTS, steps, rng)
