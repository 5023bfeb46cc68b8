"""tcgen05.mma with block scaling: kinds, scale vectors, types, layouts and shapes, compared with the model.

PTX ISA, sections 9.7.16.2.1 (shapes) and 9.7.16.10.7 (block scaling). Sums are exact.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from lanes import exhaustive_unless, is_exhaustive
from operand_formats import TYPES
from scaled_cases import PAIRED, SCALED, check_scaled, random_ids, random_scaled
from scaled_model import FORMATS, IDS, VECTORS, ScaledDescriptor, ScaledProduct
from shared_operands import SWIZZLES

from harness.support.errors import KernelFault

SMALL_FLOATS = [name for name, element in TYPES.items() if element.kind == "f8f6f4"]
PAIRS_OF_TYPES = list(itertools.product(SMALL_FLOATS, repeat=2))
SAMPLE = [("e2m3", "e3m2"), ("e2m1", "e5m2"), ("e4m3", "e2m1"), ("e3m2", "e4m3"), ("e5m2", "e2m3")]
"""Each type once as A and once as B."""


@pytest.mark.parametrize(("a", "b"), exhaustive_unless(lambda types: types in SAMPLE, PAIRS_OF_TYPES))
def test_types(a: str, b: str):
    """`.kind::mxf8f6f4` with A in shared memory and in tensor memory; each sign of A and B; added to D or not."""
    rng = np.random.default_rng(PAIRS_OF_TYPES.index((a, b)))
    steps = []
    for i, (signs, tensor) in enumerate(itertools.product(itertools.product((0, 1), repeat=2), (False, True))):
        form = ScaledDescriptor("mxf8f6f4", a, b, 128, 32, "ue8m0", (i % 4, (i + i // 4) % 4), signs)
        steps.append(random_scaled(rng, form, "", 32 * i, in_tensor_memory=tensor, accumulates=i % 3 != 1))
    check_scaled(SCALED, steps, rng)


@pytest.mark.parametrize(("kind", "vector", "scale"), FORMATS)
def test_scale_vectors(kind: str, vector: str, scale: str):
    """Every id of the scale factors of A with every one of B, each sign of A and B, and A in both memories."""
    rng = np.random.default_rng(len(vector + scale))
    steps = []
    ids = list(itertools.product(IDS[VECTORS[kind][vector]], repeat=2))
    for i in range(max(len(ids), 8)):
        signs = (i % 2, i // 2 % 2)
        form = ScaledDescriptor(kind, "e2m1", "e2m1", 128, 16, scale, ids[i % len(ids)], signs)
        steps.append(random_scaled(rng, form, vector, 16 * i, in_tensor_memory=i % 2 == 0, accumulates=i % 3 != 1))
    check_scaled(SCALED, steps, rng)


@pytest.mark.parametrize("kind", VECTORS)
def test_qualifiers_with_the_same_meaning(kind: str):
    """`.block16`, `.block32` and the default of a kind."""
    rng = np.random.default_rng(len(kind))
    steps = []
    for i, vector in enumerate(VECTORS[kind]):
        form = ScaledDescriptor(kind, "e2m1", "e2m1", 128, 40, ids=random_ids(rng, kind, vector))
        steps.append(random_scaled(rng, form, vector, 40 * i, accumulates=bool(i % 2)))
    check_scaled(SCALED, steps, rng)


def scaled_by(kind: str, vector: str, rng: np.random.Generator, n: int, scale: str, column: int) -> ScaledProduct:
    """A product with N of `n`, of types that depend on the kind."""
    form = ScaledDescriptor(kind, "e2m1", "e2m1", 128, n, scale, random_ids(rng, kind, vector))
    return random_scaled(rng, form, vector, column, in_tensor_memory=n % 16 == 0)


@pytest.mark.parametrize(("kind", "vector", "scale"), FORMATS)
def test_columns(kind: str, vector: str, scale: str):
    """Every N: scale factors of B are in up to eight columns."""
    rng = np.random.default_rng(len(kind + scale))
    widths = range(8, 257, 8) if is_exhaustive() else (8, 40, 256)
    steps = [scaled_by(kind, vector, rng, n, scale, int(rng.integers(0, 257 - n))) for n in widths]
    check_scaled(SCALED, steps, rng)


TURNS = list(itertools.product((0, 1), repeat=2))


@pytest.mark.parametrize(
    ("kind", "a", "b"), [("mxf8f6f4", "e3m2", "e2m1"), ("mxf8f6f4", "e4m3", "e5m2"), ("mxf4", "e2m1", "e2m1")]
)
def test_layouts_in_shared_memory(kind: str, a: str, b: str):
    """Every swizzle of A with every one of B; patterns that begin anywhere; elements of 8 bits in rows of M and N."""
    rng = np.random.default_rng(len(kind + a))
    steps = []
    turns = TURNS if (a, b) == ("e4m3", "e5m2") else TURNS[:1]
    choices = list(itertools.product(turns, SWIZZLES.values(), SWIZZLES.values()))
    if len(turns) > 1 and not is_exhaustive():
        choices = choices[:: len(turns) - 1]
    for i, (turned, *swizzles) in enumerate(choices):
        form = ScaledDescriptor(kind, a, b, 128, 32, transpose=turned, ids=random_ids(rng, kind, ""))
        bases = [int(rng.integers(0, 8)) if swizzle and i % 3 == 0 else 0 for swizzle in swizzles]
        steps.append(random_scaled(rng, form, "", 32 * (i % 8), (swizzles[0], swizzles[1]), bases=(bases[0], bases[1])))
    check_scaled(SCALED, steps, rng)


def test_products_on_one_accumulator_run_in_order():
    """Without a wait in between (9.7.16.6.2): the next scale factors in the same words, by their ids."""
    rng = np.random.default_rng(4)
    steps = []
    for i in range(4):
        form = ScaledDescriptor("mxf8f6f4", "e2m3", "e2m1", 128, 64, ids=(i, i))
        steps.append(random_scaled(rng, form, ".block32", 8, in_tensor_memory=False, accumulates=i > 0))
    check_scaled(SCALED, steps, rng, in_turn=False)


PAIRED_FORMATS = [("mxf8f6f4", "", "ue8m0"), ("mxf4nvf4", ".scale_vec::4X", "ue4m3"),
                  ("mxf4nvf4", ".scale_vec::4X", "ue8m0")]  # fmt: skip


@pytest.mark.parametrize(("kind", "vector", "scale"), PAIRED_FORMATS)
def test_pairs(kind: str, vector: str, scale: str):
    """`.cta_group::2`, M of 256. Each block has scale factors of its own rows of A, and of all columns of B."""
    rng = np.random.default_rng(len(scale))
    steps = []
    column = 0
    types = ("e3m2", "e2m1") if kind == "mxf8f6f4" else ("e2m1", "e2m1")
    for i, n in enumerate(range(16, 257, 16) if is_exhaustive() else (16, 48, 144, 256)):
        form = ScaledDescriptor(kind, *types, 256, n, scale, random_ids(rng, kind, vector), (i % 2, i // 2 % 2))
        swizzle = list(SWIZZLES.values())[i % 4]
        column = int(rng.integers(0, 257 - n))
        steps.append(
            random_scaled(rng, form, vector, column, (swizzle, swizzle), in_tensor_memory=i % 2 == 1, blocks=2)
        )
    check_scaled(PAIRED, steps, rng, issuer=int(scale == "ue4m3"))


def test_pairs_of_64_rows_each():
    """The model has them; CUTLASS alone says where the scale factors of B are. The emulator says that it does not."""
    form = ScaledDescriptor("mxf8f6f4", "e3m2", "e2m1", 128, 32)
    step = random_scaled(np.random.default_rng(0), form, "", blocks=2)
    with pytest.raises(KernelFault, match=r"planted.cu:\d+ .*M = 128 in two blocks.*not emulated"):
        check_scaled(PAIRED, [step], np.random.default_rng(0))
