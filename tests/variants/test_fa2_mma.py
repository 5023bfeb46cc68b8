"""What FlashAttention-2 on tensor cores does besides what every variant is tested for."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from attention_answers import hold

from harness.emulator.executor import EmulatorExecutor
from harness.emulator.instruments import Instruments
from harness.execution.counts import SharedTraffic
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.tile_sizes import TileSizes
from harness.model.variant import Variant
from harness.operations.attention.error_budget import error_budget
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem

VARIANTS = tuple(variant for variant in discover().registry if variant.algorithm == "fa2-mma")
EXECUTOR = EmulatorExecutor()
parametrize_variants = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)


def run(variant: Variant, problem: Problem, inputs: dict[str, np.ndarray], **tile: TileSizes) -> dict[str, np.ndarray]:
    return EXECUTOR.run(problem, variant.plan(problem, **tile), inputs).outputs


def assert_right(variant: Variant, problem: Problem, inputs: dict[str, np.ndarray], **tile: TileSizes) -> None:
    reference = attention(problem, inputs)
    budget = error_budget(problem, inputs, reference, variant.numerics)
    result = hold(run(variant, problem, inputs, **tile), reference, budget)
    assert result.passed, result.reason
    assert not result.suspicious


# Warps of 16 and of 32 rows, tiles shorter than a warp's diagonal and longer, and three on chip.
@parametrize_variants
@pytest.mark.parametrize(
    "tile",
    [
        {"Br": 64, "Bc": 32, "warps": 2, "stages": 3},
        {"Br": 128, "Bc": 16, "warps": 8, "stages": 2},
    ],
    ids=str,
)
def test_tiles_of_any_size_give_the_answer(variant: Variant, tile: dict[str, int]):
    # Seven tiles and more of some, the last of them not full; the diagonal crosses all blocks of rows.
    problem = Problem(heads=2, kv_heads=1, q_len=150, kv_len=203, head_dim=64, dtype="float16", mask="causal")
    assert_right(variant, problem, draw_inputs(problem, "rising", 1), tile=tile)


# Keys of the first tile and of a later one that only some rows see. head_dim 128 has tiles of 48 keys, with head_dim 33
# rows are copied element by element.
@parametrize_variants
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("dtype", "head_dim"), [("bfloat16", 128), ("float16", 33)])
@pytest.mark.parametrize("key", [20, 130])
def test_what_is_not_finite_reaches_the_rows_that_see_it_and_no_bit_of_others(
    variant: Variant, key: int, dtype: str, head_dim: int, poison: float
):
    problem = Problem(heads=1, q_len=150, kv_len=150, head_dim=head_dim, dtype=dtype, mask="causal")
    inputs = draw_inputs(problem, "normal", 2)
    clean = run(variant, problem, inputs)["O"]
    inputs["V"][:, :, key, :5] = poison
    dirty = run(variant, problem, inputs)["O"]
    assert np.array_equal(dirty[:, :, :key], clean[:, :, :key])
    assert np.array_equal(dirty[..., 5:], clean[..., 5:])
    reached = dirty[:, :, key:, :5].astype(np.float32)
    assert np.all(np.isnan(reached) | (reached == poison))


@parametrize_variants
@pytest.mark.parametrize("scale", [-1.0, 0.0])
def test_a_scale_that_is_not_positive_changes_q_alone(variant: Variant, scale: float):
    # Bit for bit: Q with the other sign, or Q = 0, and a positive scale.
    problem = Problem(heads=2, q_len=70, kv_len=130, head_dim=33, dtype="bfloat16", mask="causal", scale=scale)
    positive = Problem(heads=2, q_len=70, kv_len=130, head_dim=33, dtype="bfloat16", mask="causal", scale=1.0)
    inputs = draw_inputs(problem, "normal", 3)
    changed = {**inputs, "Q": (inputs["Q"].astype(np.float32) * scale).astype(inputs["Q"].dtype)}
    found, expected = run(variant, problem, inputs), run(variant, positive, changed)
    assert np.array_equal(found["O"], expected["O"])
    assert np.array_equal(found["lse"], expected["lse"])
    # NaN in q makes all scores of its row NaN, whatever they are multiplied by.
    inputs["Q"][:, :, 69, 0] = math.nan
    dirty = run(variant, problem, inputs)["O"]
    assert np.all(np.isnan(dirty[:, :, 69].astype(np.float32)))
    assert np.array_equal(dirty[:, :, :69], found["O"][:, :, :69])


def shared_traffic(variant: Variant, head_dim: int) -> Iterator[SharedTraffic]:
    problem = Problem(heads=1, q_len=256, kv_len=256, head_dim=head_dim, dtype="bfloat16", mask="causal")
    executor = EmulatorExecutor(instruments=Instruments(bank_conflicts=True))
    (launch,) = executor.run(problem, variant.plan(problem), draw_inputs(problem, "normal", 1)).launches
    assert launch.shared
    yield from launch.shared


@parametrize_variants
@pytest.mark.parametrize("head_dim", [64, 128])
def test_no_bank_conflicts(variant: Variant, head_dim: int):
    for line in shared_traffic(variant, head_dim):
        assert line.wavefronts == line.ideal_wavefronts, line
