"""Examples of a few keys that are worked out by hand or in print, and tiles of other sizes, for a few variants."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attention_runs import (
    accuracy,
    compiles_soon,
    executed,
    parametrize_sampled,
    run,
    skip_unsupported,
)
from lanes import exhaustive_unless

from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.tile_sizes import TileSizes
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem

# A worked example: scores 1, 2, 4, 2, 5, 1, 3, 1.
EIGHT_KEYS = Problem(heads=1, q_len=1, kv_len=8, head_dim=4, scale=1.0)
EIGHT_KEYS_Q = [1, 0, 2, 1]
EIGHT_KEYS_K = [
    [1, 1, 0, 0],
    [0, 1, 1, 0],
    [1, 0, 1, 1],
    [0, 0, 1, 0],
    [2, 1, 1, 1],
    [0, 1, 0, 1],
    [1, 1, 1, 0],
    [0, 0, 0, 1],
]
EIGHT_KEYS_V = [
    [2, 1, 0, 3],
    [1, 0, 1, 2],
    [0, 2, 1, 1],
    [3, 1, 0, 0],
    [1, 3, 2, 0],
    [0, 1, 0, 2],
    [2, 0, 1, 1],
    [1, 0, 0, 3],
]
EIGHT_KEYS_O = [0.920, 2.306, 1.540, 0.452]

# The same for a problem whose scores are given: q picks the first element of each key.
FOUR_KEYS = Problem(heads=1, q_len=1, kv_len=4, head_dim=4, scale=1.0)

# A compilation each.
EXAMPLE_TILES = exhaustive_unless(lambda tile: tile is None, (None, {"Br": 2, "Bc": 2}, {"Br": 4, "Bc": 4}))
UNEVEN_TILE = {"Br": 3, "Bc": 5}
TILES = exhaustive_unless(lambda tile: tile == UNEVEN_TILE, ({"Br": 2, "Bc": 2}, {"Br": 4, "Bc": 4}, UNEVEN_TILE))


def example_inputs(problem: Problem, q: object, k: object, v: object) -> dict[str, np.ndarray]:
    shapes = {"Q": (q, problem.q_shape), "K": (k, problem.kv_shape), "V": (v, problem.kv_shape)}
    return {name: np.array(a, NUMPY_DTYPES[problem.dtype]).reshape(shape) for name, (a, shape) in shapes.items()}


def given_scores(scores: list[float], values: list[float]) -> dict[str, np.ndarray]:
    """Inputs of FOUR_KEYS with these scores and, in the first column, these values."""
    k, v = np.zeros((4, 4)), np.zeros((4, 4))
    k[:, 0], v[:, 0] = scores, values
    return example_inputs(FOUR_KEYS, [1, 0, 0, 0], k, v)


def tile_argument(variant: Variant, tile: TileSizes | None) -> dict[str, TileSizes]:
    if tile is None:
        return {}
    if variant.tiles is None or set(tile) != set(variant.tiles(Problem())[0]):
        pytest.skip("its tile sizes are not a parameter, or others")
    return {"tile": tile}


@parametrize_sampled()
@pytest.mark.parametrize("tile", EXAMPLE_TILES, ids=str)
def test_worked_example_of_eight_keys(variant: Variant, tile: TileSizes | None):
    skip_unsupported(variant, EIGHT_KEYS)
    inputs = example_inputs(EIGHT_KEYS, EIGHT_KEYS_Q, EIGHT_KEYS_K, EIGHT_KEYS_V)
    output = run(variant, EIGHT_KEYS, inputs, **tile_argument(variant, tile)).outputs["O"]
    # Half a unit of the last printed digit.
    np.testing.assert_allclose(output.reshape(-1), EIGHT_KEYS_O, rtol=0, atol=0.0005)


@parametrize_sampled()
@pytest.mark.parametrize("tile", EXAMPLE_TILES, ids=str)
def test_worked_example_of_four_keys(variant: Variant, tile: TileSizes | None):
    skip_unsupported(variant, FOUR_KEYS)
    inputs = given_scores([2, 3, 5, 4], [10, 20, 30, 40])
    output = run(variant, FOUR_KEYS, inputs, **tile_argument(variant, tile)).outputs["O"].reshape(-1)
    np.testing.assert_allclose(output, [30.86, 0, 0, 0], rtol=0, atol=0.005)


@parametrize_sampled()
@pytest.mark.parametrize("tile", EXAMPLE_TILES[:2], ids=str)
def test_worked_example_of_the_streaming_denominator(variant: Variant, tile: TileSizes | None):
    skip_unsupported(variant, FOUR_KEYS)
    inputs = given_scores([1, 2, 3, 4], [1, 1, 1, 1])
    outputs = run(variant, FOUR_KEYS, inputs, **tile_argument(variant, tile)).outputs
    if "lse" not in outputs:
        pytest.skip("it stores no log-sum-exp")
    denominator = math.exp(float(outputs["lse"].item()) - 4)
    assert denominator == pytest.approx(sum(math.exp(x - 4) for x in (1, 2, 3, 4)), rel=1e-6)
    # In print it is 1.552: the intermediate results there are cut to three digits, 1.367 * 0.135 + 1.367.
    assert abs(denominator - 1.552) < 0.0015


@parametrize_sampled(compiles_soon)
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_any_tile_sizes_give_the_answer(variant: Variant, tile: TileSizes, causal: bool):
    problem = Problem(heads=2, kv_heads=1, q_len=9, kv_len=23, head_dim=4, mask="causal" if causal else "none")
    skip_unsupported(variant, problem)
    if variant.backend == "triton" and min(size for size in tile.values() if isinstance(size, int)) < 8:
        pytest.skip("products of Triton sum over at least 8 elements")
    execution = executed(variant, problem, "rising", 4, **tile_argument(variant, tile))
    result = accuracy(variant, problem, "rising", 4, execution)
    assert result.passed, result.reason
