"""tcgen05.mma.cta_group::2: two blocks of a cluster multiply together, compared with the model in all cells of both.

Each block has half of A's rows and half of B's columns in its shared memory, at the places that one descriptor names.
PTX ISA, sections 9.7.16.5.1 (pairs), 9.7.16.10.5.1 and .2 (layouts A and B).
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from lanes import exhaustive_unless, is_exhaustive
from product_cases import check_products, random_product
from product_model import InstructionDescriptor
from shared_operands import SWIZZLES
from tensor_machine import Form, TensorMachine

PAIR = TensorMachine(
    (
        *(Form(f"mma.kind::{kind}", tensor) for kind in ("f16", "f8f6f4") for tensor in (False, True)),
        Form("mma.kind::f16", masked=True),
        Form("mma.kind::tf32"),
    ),
    blocks=2,
)
TYPES = [("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
         ("f32", "e4m3", "e5m2"), ("f16", "e5m2", "e4m3"), ("f32", "e2m3", "e2m1"),
         ("f16", "e3m2", "e4m3")]  # fmt: skip


@pytest.mark.parametrize("m", [128, 256])
@pytest.mark.parametrize(
    ("d", "a", "b"), exhaustive_unless(lambda types: types in (TYPES[0], TYPES[4], TYPES[6]), TYPES)
)
def test_types_and_swizzles(m: int, d: str, a: str, b: str):
    """With A in shared and in tensor memory; A and B in rows of K, or of M and N where the type allows."""
    rng = np.random.default_rng(m)
    steps = []
    turns = list(itertools.product((0, 1), repeat=2)) if TYPES.index((d, a, b)) < 3 else [(0, 0)]
    for i, swizzle in enumerate(SWIZZLES.values()):
        form = InstructionDescriptor(d, a, b, m, 32, (i % 2, i // 2), turns[i % len(turns)])
        tensor = i == 3 and not form.transpose[0] and a != "tf32"
        plain = InstructionDescriptor(d, a, b, m, 32) if tensor else form
        steps.append(random_product(rng, plain, 32 * i, swizzles=(swizzle, swizzle), blocks=2, in_tensor_memory=tensor))
    if a != "tf32":
        whole = InstructionDescriptor(d, a, b, m, 64)
        steps.append(random_product(rng, whole, 128, blocks=2, in_tensor_memory=True, accumulates=False))
    check_products(PAIR, steps, rng)


@pytest.mark.parametrize("m", [128, 256])
def test_columns_and_lanes(m: int):
    """Every N, and disabled lanes: the first four words are of the first block's lanes."""
    rng = np.random.default_rng(m + 1)
    mask = tuple(int(x) for x in rng.integers(0, 1 << 32, 8))
    steps = []
    for i, n in enumerate(range(16, 257, 16) if is_exhaustive() else (16, 48, 256)):
        form = InstructionDescriptor("f32", "f16", "f16", m, n)
        width = n if m == 256 else n // 2
        column = int(rng.integers(0, 257 - width))
        steps.append(random_product(rng, form, column, blocks=2, disabled=mask if i % 2 else ()))
    check_products(PAIR, steps, rng)


@pytest.mark.parametrize(("issuer", "seed"), [(1, 0), (0, 5), (1, 6)])
def test_either_block_issues(issuer: int, seed: int):
    """In any order of warps."""
    rng = np.random.default_rng(issuer)
    steps = [
        random_product(rng, InstructionDescriptor("f32", "f16", "f16", m, 64), 64 * i, blocks=2)
        for i, m in enumerate((128, 256))
    ]
    check_products(PAIR, steps[:1], rng, issuer=issuer, seed=seed, shuffle=True)
    check_products(PAIR, steps[1:], rng, issuer=issuer, seed=seed, shuffle=True)
