"""What FlashAttention-2 on tensor cores does besides what every variant is tested for."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from attention_answers import hold
from emulators import emulator
from lanes import exhaustive_unless, is_exhaustive

from harness.emulator.instruments import Instruments
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.traffic.counts import SharedTraffic
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.tile_sizes import TileSizes
from harness.model.variant import Variant
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem

VARIANTS = tuple(variant for variant in discover().registry if variant.algorithm == "fa2-mma")
EXECUTOR = emulator()
parametrize_cuda = pytest.mark.parametrize(
    "variant", exhaustive_unless(lambda variant: variant.backend == "cupy", VARIANTS), ids=lambda variant: variant.name
)
"""Further tiles are compilations, of seconds each in Numba."""
parametrize_variants = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)


def skip_further_compilation(variant: Variant, problem: Problem) -> None:
    """Masks that are no band are a kernel of their own, which takes Numba long."""
    if not (problem.mask.is_band or variant.backend == "cupy" or is_exhaustive()):
        pytest.skip("in the exhaustive lane")


def run(variant: Variant, problem: Problem, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return EXECUTOR.run(problem, variant.plan(problem), inputs).outputs


def assert_right(variant: Variant, problem: Problem, inputs: dict[str, np.ndarray], **tile: TileSizes) -> None:
    """The answer is right, and the bytes are those that are claimed."""
    reference = attention(problem, inputs)
    budget = error_budget(problem, inputs, reference, variant.numerics)
    execution = EXECUTOR.run(problem, variant.plan(problem, **tile), inputs)
    result = hold(execution.outputs, reference, budget)
    assert result.passed, result.reason
    assert not result.suspicious
    assert variant.claim is not None
    claim = variant.claim(problem, **tile)
    assert (execution.read_bytes, execution.write_bytes) == (claim.read_bytes, claim.write_bytes)


# Warps of 16 and of 32 rows, tiles shorter than a warp's diagonal and longer, and three on chip.
@pytest.mark.thorough
@parametrize_cuda
@pytest.mark.parametrize(
    "tile",
    [
        {"Br": 64, "Bc": 32, "warps": 2, "stages": 3},
        pytest.param({"Br": 128, "Bc": 16, "warps": 8, "stages": 2}, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
@pytest.mark.parametrize("mask", ["causal", "window:40,9"])
def test_tiles_of_any_size_give_the_answer(variant: Variant, mask: str, tile: dict[str, int]):
    # Seven tiles and more of some, the last of them not full; the diagonal crosses all blocks of rows.
    problem = Problem(heads=2, kv_heads=1, q_len=150, kv_len=203, head_dim=64, dtype="float16", mask=mask)
    assert_right(variant, problem, draw_inputs(problem, "rising", 1), tile=tile)


# Tiles have 128 rows, and 96 keys with head_dim 64, 48 with 128. The first row of 150 lies on key 53 of 203.
@pytest.mark.thorough
@parametrize_variants
@pytest.mark.parametrize("head_dim", [64, pytest.param(128, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("q_len", "kv_len", "mask"),
    [
        (150, 203, "window:0"),
        (150, 203, "window:5,42"),  # from key 48 to before 96
        (150, 203, "window:6,43"),
        (150, 203, "window:4,41"),
        (150, 203, "causal+window:84"),  # the last block's from key 97, 96 and 95
        (150, 203, "causal+window:85"),
        (150, 203, "causal+window:86"),
        (150, 203, "window:1000"),
        (500, 500, "causal+window:257"),  # of some blocks of rows no warp sees the first tile and the last
        (500, 530, "window:300,20"),
        (40, 300, "window:30,3"),  # the first tiles are nobody's
        (1, 300, "window:100"),
        (300, 40, "window:7"),  # blocks that see nothing, and one with rows that do not
        (130, 1, "window:3,2"),
        (150, 203, "documents:95+2+95"),  # beside the edge of a tile, and within one of rows
        (150, 150, "documents:96+16+38"),  # on the edges of a tile and of a warp's rows
        (300, 40, "documents:7+30"),
        (150, 203, "window:84,0+documents:97+50"),
        (150, 203, "prefix:97"),
    ],
)
def test_windows_end_on_and_beside_the_edges_of_tiles(
    variant: Variant, q_len: int, kv_len: int, mask: str, head_dim: int
):
    problem = Problem(heads=2, kv_heads=1, q_len=q_len, kv_len=kv_len, head_dim=head_dim, dtype="bfloat16", mask=mask)
    skip_further_compilation(variant, problem)
    assert_right(variant, problem, draw_inputs(problem, "rising", 1))


# At 128 elements per row warps write their own rows of O while others are at work; at 64 they do so together.
@pytest.mark.thorough
@pytest.mark.parametrize(
    "mask",
    ["causal+window:100", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("none", "blocks:64x32,3"))],
)
def test_warps_that_are_done_before_others_race_with_nobody(mask: str):
    (variant,) = (each for each in VARIANTS if each.backend == "cupy")
    problem = Problem(heads=2, q_len=300, kv_len=300, head_dim=128, dtype="bfloat16", mask=mask)
    findings = EmulatorSanitizer(shuffled_runs=1).check(
        variant, problem, variant.plan(problem), draw_inputs(problem, "normal", 1)
    )
    assert list(findings) == []


# NaN in V at element k of key k, or that many further: O shows which row saw which key, as far as windows are shorter
# than head_dim. Rows in full tiles of keys (the last window, at 128), in masked ones, in those that some rows see
# nothing of, and rows that see nothing at all.
@pytest.mark.thorough
@parametrize_variants
@pytest.mark.parametrize("head_dim", [64, pytest.param(128, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("q_len", "kv_len", "mask"),
    [
        (150, 150, "window:20,7"),
        (140, 110, "window:0"),
        (60, 190, "causal+window:40"),
        (130, 250, "window:60,50"),
        (150, 150, "documents:20+40+1+31+58"),
        (150, 203, "documents:80+60+1+62"),
    ],
)
def test_what_is_not_finite_outside_of_a_window_reaches_no_row(
    variant: Variant, q_len: int, kv_len: int, mask: str, head_dim: int
):
    problem = Problem(heads=1, q_len=q_len, kv_len=kv_len, head_dim=head_dim, dtype="bfloat16", mask=mask)
    skip_further_compilation(variant, problem)
    rows, keys = np.arange(q_len)[:, None], np.arange(kv_len)
    visible = problem.mask.visible(rows, keys[None, :], q_len, kv_len)
    inputs = draw_inputs(problem, "normal", 2)
    clean = run(variant, problem, inputs)

    poisoned = {**inputs, "V": inputs["V"].copy()}
    poisoned["V"][0, 0, keys, keys % head_dim] = math.nan
    dirty = run(variant, problem, poisoned)
    reached = np.stack([visible[:, keys % head_dim == element].any(axis=1) for element in range(head_dim)], axis=1)
    assert np.array_equal(np.isnan(dirty["O"][0, 0].astype(np.float32)), reached)
    assert np.array_equal(dirty["O"][0, 0][~reached], clean["O"][0, 0][~reached])
    assert np.array_equal(dirty["lse"], clean["lse"])

    for key in (0, kv_len // 2, kv_len - 1):
        poisoned = {**inputs, "K": inputs["K"].copy()}
        poisoned["K"][0, 0, key, 3] = math.nan
        lse = run(variant, problem, poisoned)["lse"][0, 0]
        assert np.array_equal(np.isnan(lse), visible[:, key])


@parametrize_cuda
def test_rows_whose_window_lies_before_all_keys_see_nothing(variant: Variant):
    # Row 140 lies on key 0: rows from 133 on see it. The first block of rows sees nothing.
    problem = Problem(heads=2, q_len=200, kv_len=60, head_dim=64, dtype="bfloat16", mask="window:5,7")
    outputs = run(variant, problem, draw_inputs(problem, "normal", 3))
    assert np.array_equal(outputs["O"][:, :, :133], np.zeros((1, 2, 133, 64)))
    assert np.all(np.isneginf(outputs["lse"][:, :, :133]))
    assert np.all(np.isfinite(outputs["lse"][:, :, 133:]))


# Keys of the first tile and of a later one that only some rows see. head_dim 128 has tiles of 48 keys, with head_dim 33
# rows are copied element by element.
@pytest.mark.thorough
@parametrize_cuda
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("dtype", "head_dim"),
    exhaustive_unless(
        lambda kernel: kernel == ("bfloat16", 33), [("bfloat16", 128), ("float16", 33), ("bfloat16", 33)]
    ),
)
@pytest.mark.parametrize("key", [20, 130])
def test_nonfinite_values_reach_only_the_rows_that_see_them(
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


@pytest.mark.thorough
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
    executor = emulator(instruments=Instruments(bank_conflicts=True))
    (launch,) = executor.run(problem, variant.plan(problem), draw_inputs(problem, "normal", 1)).launches
    assert launch.shared
    yield from launch.shared


@pytest.mark.thorough
@parametrize_variants
@pytest.mark.parametrize("head_dim", [64, pytest.param(128, marks=pytest.mark.exhaustive)])
def test_no_bank_conflicts(variant: Variant, head_dim: int):
    for line in shared_traffic(variant, head_dim):
        assert line.wavefronts == line.ideal_wavefronts, line
