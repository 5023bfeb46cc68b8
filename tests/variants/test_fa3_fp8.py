"""What FlashAttention-3 with factors of 8 bits does besides what every variant is tested for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attention_answers import hold
from emulators import emulator
from kernel_resources import LARGEST_BLOCK_BYTES, assert_in_registers, used
from lanes import exhaustive, exhaustive_unless

from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.protocol import Execution
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.tile_sizes import TileSizes
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from harness.support.errors import PlanError
from variants._hopper import STATIC_BYTES
from variants._hopper.e4m3 import ByteTile
from variants.attention import fa3_fp8

VARIANT = discover().registry.get("fa3-fp8-cupy")
EXECUTOR = emulator()
Inputs = dict[str, np.ndarray]


def assert_right(
    problem: Problem, regime: str = "rising", inputs: Inputs | None = None, **tile: TileSizes
) -> Execution:
    """The answer is right, and the bytes are those that are claimed where all inputs are finite."""
    given = draw_inputs(problem, regime, 1) if inputs is None else inputs
    reference = attention(problem, given)
    execution = EXECUTOR.run(problem, VARIANT.plan(problem, **tile), given)
    result = hold(execution.outputs, reference, error_budget(problem, given, reference, VARIANT.numerics))
    assert result.passed, result.reason
    assert not result.suspicious
    assert VARIANT.claim is not None
    claim = VARIANT.claim(problem, **tile)
    if all(np.isfinite(x.astype(np.float32)).all() for x in given.values()):
        assert (execution.read_bytes, execution.write_bytes) == (claim.read_bytes, claim.write_bytes)
    return execution


# Boxes of 32, 64 and 128 bytes, of rows of Q and K and of rows of V transposed; two warpgroups in turns and not, three.
@pytest.mark.parametrize(
    ("head_dim", "tile"),
    [
        (40, {"Br": 128, "Bc": 64, "stages": 3, "turns": 1}),
        pytest.param(96, {"Br": 128, "Bc": 160, "stages": 2, "turns": 0}, marks=pytest.mark.thorough),
        *exhaustive(
            [
                (64, {"Br": 192, "Bc": 128, "stages": 2, "turns": 0}),
                (128, {"Br": 128, "Bc": 96, "stages": 2, "turns": 1}),
                (256, {"Br": 128, "Bc": 64, "stages": 2, "turns": 0}),
            ]
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "mask", ["window:140,9", *(pytest.param(m, marks=pytest.mark.exhaustive) for m in ("none", "causal"))]
)
def test_tiles_of_any_size_give_the_answer(head_dim: int, tile: dict[str, int], mask: str):
    problem = Problem(heads=2, kv_heads=1, q_len=250, kv_len=403, head_dim=head_dim, dtype="float16", mask=mask)
    assert_right(problem, tile=tile)


# Tiles of 96 keys come last ones first. m of the first may be too small for those that follow, so that P is beyond
# e4m3's numbers, or exponentials beyond float's: by 2^8 at a time, by 2^40, by 2^300 once or thrice.
@pytest.mark.parametrize(
    ("first_keys", "sizes"),
    [((280, 180, 0), (1, 2, 4)), ((200, 0), (1, 12)), ((200, 0), (1, 100)), ((280, 180, 80, 0), (1, 100, 300, 900))],
    ids=str,
)
@pytest.mark.parametrize("mask", ["none", pytest.param("causal", marks=pytest.mark.thorough)])
def test_scores_may_outgrow_the_maximum_by_any_factor(first_keys: tuple[int, ...], sizes: tuple[int, ...], mask: str):
    problem = Problem(heads=2, kv_heads=1, q_len=70, kv_len=391, head_dim=128, dtype="bfloat16", mask=mask)
    inputs = draw_inputs(problem, "normal", 2)
    ends = (problem.kv_len, *first_keys)
    for first, end, size in zip(first_keys, ends, sizes):
        inputs["K"][:, :, first:end] *= size
    assert_right(problem, inputs=inputs)


# All keys of the tile that comes second have one weight, this power of two times the first one's. From 2^118 each is a
# float, but their sum is none.
@pytest.mark.parametrize(
    "power", [2.0, 119.0, *(pytest.param(p, marks=pytest.mark.thorough) for p in (3, 118, 121.5, 140))]
)
def test_sums_may_leave_the_range_of_float(power: float):
    head_dim = 128
    problem = Problem(q_len=66, kv_len=288, head_dim=head_dim, dtype="float16", scale=power * math.log(2) / head_dim)
    inputs = draw_inputs(problem, "normal", 3)
    inputs["Q"][:], inputs["K"][:] = 1, 0
    inputs["K"][:, :, 96:192] = 1
    assert_right(problem, inputs=inputs)


def test_bytes_are_as_claimed_for_partial_warps():
    # 127 rows of 9 and of 12 pieces for 256 threads: a loop that is unrolled for each lane by itself would read apart.
    assert_right(Problem(heads=1, q_len=127, kv_len=1, head_dim=72, dtype="bfloat16"))


def test_weights_that_are_small_one_by_one_are_not_lost():
    # One key, of the tile that comes first, has half the weight, and each of 3000 others less than 2^-11 of that: e4m3
    # has 0 for it unless P is larger, which would be within the budget of weights of 8 bits: 0.5 of O = -0.25.
    head_dim, kv_len = 32, 3001
    problem = Problem(q_len=3, kv_len=kv_len, head_dim=head_dim, dtype="float16", scale=math.log(kv_len - 1) / head_dim)
    inputs = draw_inputs(problem, "uniform", 4)
    inputs["Q"][:], inputs["K"][:] = 1, 0
    inputs["K"][:, :, -1], inputs["V"][:, :, -1] = 1, -1
    O = assert_right(problem, inputs=inputs).outputs["O"]
    assert np.abs(O - attention(problem, inputs)["O"]).max() < 0.1


@pytest.mark.thorough
@pytest.mark.parametrize("mask", ["none", "causal", "window:20,7"])
def test_infinity_in_k_is_minus_infinity_for_rows_of_the_other_sign(mask: str):
    # Of 300 keys three are infinite somewhere: such rows give them no weight, others are NaN, and heads without them
    # are as they would be.
    problem = Problem(heads=4, kv_heads=2, q_len=300, kv_len=300, head_dim=48, dtype="bfloat16", mask=mask)
    inputs = draw_inputs(problem, "normal", 2)
    clean = EXECUTOR.run(problem, VARIANT.plan(problem), inputs).outputs
    inputs["K"][0, 1, 10, 5] = inputs["K"][0, 1, 170, 47] = math.inf
    inputs["K"][0, 1, 299, 0] = -math.inf
    dirty = assert_right(problem, inputs=inputs).outputs
    assert np.array_equal(dirty["O"][:, :2], clean["O"][:, :2])
    finite = np.isfinite(dirty["lse"][0, 2:])
    assert finite.any() and not finite.all()


@pytest.mark.thorough
def test_infinity_in_k_before_a_q_that_e4m3_rounds_to_zero_has_its_sign():
    problem = Problem(heads=1, q_len=3, kv_len=5, head_dim=32, dtype="bfloat16")
    inputs = draw_inputs(problem, "normal", 2)
    inputs["Q"][0, 0, :, 3] = -1e-8, 1e-8, 0
    inputs["K"][0, 0, 2, 3] = math.inf
    lse = assert_right(problem, inputs=inputs).outputs["lse"][0, 0]
    assert np.isfinite(lse[0]) and np.isnan(lse[1]) and np.isnan(lse[2])


# NaN in V at element k of key k, or that many further: O shows which row saw which key.
@pytest.mark.thorough
@pytest.mark.parametrize("head_dim", [64, pytest.param(96, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("q_len", "kv_len", "mask"),
    [(250, 250, "window:20,7"), (60, 290, "causal+window:40"), (230, 230, "causal+window:60")],
)
def test_what_is_not_finite_outside_of_a_window_reaches_no_row(q_len: int, kv_len: int, mask: str, head_dim: int):
    problem = Problem(heads=1, q_len=q_len, kv_len=kv_len, head_dim=head_dim, dtype="bfloat16", mask=mask)
    rows, keys = np.arange(q_len)[:, None], np.arange(kv_len)
    visible = problem.mask.visible(rows, keys[None, :], q_len, kv_len)
    inputs = draw_inputs(problem, "normal", 2)
    # The largest magnitude stays: it is that of the head, whoever sees it.
    inputs["V"][0, 0, :, 0] = 8
    clean = EXECUTOR.run(problem, VARIANT.plan(problem), inputs).outputs
    inputs["V"][0, 0, keys, keys % (head_dim - 1) + 1] = math.nan
    dirty = EXECUTOR.run(problem, VARIANT.plan(problem), inputs).outputs
    reached = np.zeros((q_len, head_dim), np.bool_)
    for element in range(1, head_dim):
        reached[:, element] = visible[:, keys % (head_dim - 1) + 1 == element].any(axis=1)
    assert np.array_equal(np.isnan(dirty["O"][0, 0].astype(np.float32)), reached)
    assert np.array_equal(dirty["O"][0, 0][~reached], clean["O"][0, 0][~reached])
    assert np.array_equal(dirty["lse"], clean["lse"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("q", "k", "v"), [(0, 0, -100), (0, 0, 100), (60, -60, 0), (-90, 90, 30)], ids=lambda power: f"2^{power}"
)
def test_scales_are_powers_of_two_so_those_of_inputs_go_through_to_the_bit(q: int, k: int, v: int):
    problem = Problem(heads=2, kv_heads=1, q_len=70, kv_len=90, head_dim=48, dtype="bfloat16")
    inputs = draw_inputs(problem, "normal", 1)
    powers = {"Q": q, "K": k, "V": v}
    scaled = {name: (x.astype(np.float64) * 2.0 ** powers[name]).astype(x.dtype) for name, x in inputs.items()}
    plan = VARIANT.plan(problem)
    one, other = (EXECUTOR.run(problem, plan, x).outputs for x in (inputs, scaled))
    assert np.array_equal(other["O"].astype(np.float64), one["O"].astype(np.float64) * 2.0**v)
    assert np.array_equal(other["lse"], one["lse"])


def test_heads_of_zeros_are_no_nan():
    problem = Problem(heads=2, q_len=40, kv_len=50, dtype="float16")
    for name in "QKV":
        inputs = draw_inputs(problem, "normal", 1)
        inputs[name][:, 0] = 0
        assert_right(problem, inputs=inputs)


@pytest.mark.thorough
@pytest.mark.parametrize("mask", ["causal", pytest.param("none", marks=pytest.mark.exhaustive)])
def test_nothing_races_where_a_block_has_several_tiles(mask: str, monkeypatch: pytest.MonkeyPatch):
    # Ten tiles for two blocks, of which some see no key.
    monkeypatch.setattr(fa3_fp8, "MULTIPROCESSORS", 2)
    problem = Problem(heads=5, q_len=260, kv_len=61, dtype="bfloat16", mask=mask)
    plan, inputs = VARIANT.plan(problem), draw_inputs(problem, "normal", 1)
    assert plan.launches[-1].grid == (2,)
    assert EmulatorSanitizer(shuffled_runs=1).check(VARIANT, problem, plan, inputs) == ()
    assert_right(problem)


@pytest.mark.thorough
def test_sections_of_heads_give_each_head_each_tile_once(monkeypatch: pytest.MonkeyPatch):
    # A head's K and V are 300 rows of 64 bytes and 64 of 320: sections of one group of 3. The last one is not full.
    monkeypatch.setattr(fa3_fp8, "L2_BYTES", 45_000)
    problem = Problem(heads=15, kv_heads=5, q_len=300, kv_len=300, dtype="bfloat16", mask="causal")
    assert fa3_fp8.heads_at_once(problem) == 3
    assert_right(problem)


# --- What it takes of the hardware -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head_dim", "mask", "dtype"),
    exhaustive_unless(
        lambda build: build == (128, "causal", "bfloat16"),
        [
            *((d, mask, "bfloat16") for d in range(32, 257, 32) for mask in ("none", "causal", "window:40")),
            *((d, "causal", "float16") for d in (64, 128, 256)),
        ],
    ),
)
def test_nothing_spills_at_any_head_dim(head_dim: int, mask: str, dtype: str):
    problem = Problem(heads=2, q_len=64, kv_len=64, head_dim=head_dim, dtype=dtype, mask=mask)
    for launch in VARIANT.plan(problem).launches:
        found = used(launch)
        assert_in_registers(found)
        assert found.shared_bytes + launch.shared_bytes <= LARGEST_BLOCK_BYTES
    assert found.shared_bytes <= STATIC_BYTES


@pytest.mark.exhaustive
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("mask", ["none", "window:40"])
def test_nothing_spills_with_any_tile(head_dim: int, mask: str):
    problem = Problem(heads=2, q_len=64, kv_len=64, head_dim=head_dim, dtype="bfloat16", mask=mask)
    assert VARIANT.tiles is not None
    for tile in VARIANT.tiles(problem):
        found = used(VARIANT.plan(problem, tile).launches[-1])
        assert (found.spill_store_bytes, found.spill_load_bytes) == (0, 0), tile


@pytest.mark.parametrize("head_dim", [8, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("mask", ["none", "causal", "window:9"])
def test_tiles_to_choose_from_start_with_the_default_fit_and_differ(head_dim: int, mask: str):
    assert VARIANT.tiles is not None
    problem = Problem(head_dim=head_dim, dtype="bfloat16", mask=mask)
    tiles = [ByteTile(**tile) for tile in VARIANT.tiles(problem)]
    assert tiles[0] == fa3_fp8.default_tile(problem)
    assert len(set(tiles)) == len(tiles) >= 3
    assert all(tile.fits(head_dim) for tile in tiles[1:])
    assert all(tile.shared_bytes(head_dim) + STATIC_BYTES <= LARGEST_BLOCK_BYTES for tile in tiles)


def test_tiles_that_no_product_takes_are_refused():
    with pytest.raises(PlanError, match="multiple of 32"):
        ByteTile(Br=128, Bc=80, stages=2, turns=0)
