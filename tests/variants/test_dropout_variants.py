"""Variants whose weights drop out: answers, bytes, the same weights whatever the tiles, arguments, registers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from attention_answers import hold
from emulators import emulator
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lanes import exhaustive_unless, is_exhaustive, thorough_unless
from right_answers import require_right

from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import PASS
from harness.execution.planning.tiles import with_tile
from harness.execution.planning.variant_calls import make_plan, refusal_of
from harness.execution.protocol import Execution
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.plan import Plan
from harness.model.tile_sizes import TileSizes
from harness.model.traffic import Traffic
from harness.model.variant import Variant
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.dropout import kept_keys
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.masks import parse_mask
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import DROPOUT, Problem
from harness.operations.attention_backward.inputs import REGIMES as BACKWARD_REGIMES
from harness.operations.attention_backward.problem import BackwardProblem
from harness.support.errors import PlanError, UnsupportedProblem

VARIANTS = [v for v in discover().registry.select(None, "attention") if DROPOUT in v.takes]
EXECUTOR = emulator()
SCORES = {"softcap": 3.0, "alibi": True, "sinks": True}
LARGE_SEED = 5 * 2**32 + 9

each_variant = pytest.mark.parametrize(
    "variant",
    exhaustive_unless(lambda variant: variant.name in ("fa2-cupy", "fa2-mma-cupy"), VARIANTS),
    ids=lambda variant: variant.name,
)
"""Each has kernels of its own to compile: the default lane has one on CUDA cores and one on tensor cores."""


def build_of(variant: Variant) -> dict[str, object]:
    """One per variant, and short rows: what is compiled and run is little then."""
    takes_float32 = refusal_of(variant, Problem(head_dim=16)) is None
    return {"dtype": "float32" if takes_float32 else "float16", "head_dim": 16}


def run(variant: Variant, problem: Problem, inputs: dict[str, np.ndarray], tile: TileSizes | None = None) -> Execution:
    plan = make_plan(variant, problem) if tile is None else variant.plan(problem, tile)
    return EXECUTOR.run(problem, plan, inputs)


def assert_right(variant: Variant, problem: Problem, regime: str, seed: int) -> None:
    """Every output within what is expected, every byte claimed: no more than without dropout."""
    inputs = draw_inputs(problem, regime, seed)
    done = run(variant, problem, inputs)
    answer = attention(problem, inputs)
    result = hold(done.outputs, answer, error_budget(problem, inputs, answer, variant.numerics))
    assert result.passed, result.reason
    assert not result.suspicious, result
    assert variant.claim is not None
    assert done.read_bytes is not None and done.write_bytes is not None
    counted = Traffic(done.read_bytes, done.write_bytes)
    assert variant.tiles is not None
    same_tiles = with_tile(variant, variant.tiles(problem)[0])
    assert same_tiles.claim is not None
    assert counted == variant.claim(problem) == same_tiles.claim(dataclasses.replace(problem, dropout=0.0))


LENGTHS = st.one_of(st.sampled_from((1, 2, 16, 31, 33, 64, 65, 128, 129)), st.integers(1, 200))
MASKS = ("none", "causal", "window:20,3", "causal+window:33", *(("documents:40+3+70",) if is_exhaustive() else ()))


@each_variant
@pytest.mark.parametrize("fields", exhaustive_unless(lambda fields: not fields, ({}, SCORES)), ids=str)
def test_answers_and_bytes_whatever_the_shape(variant: Variant, fields: dict[str, object]):
    @given(
        heads=st.sampled_from(((1, 1), (3, 3), (4, 2), (12, 3), (10, 1))),
        lengths=st.tuples(LENGTHS, LENGTHS),
        rest=st.tuples(st.integers(1, 3), st.sampled_from(MASKS), st.sampled_from((None, 1.0, -0.25, 0.0))),
        dropout=st.tuples(st.sampled_from((0.1, 0.5, 0.9, 2**-8, 1 - 2**-8)), st.integers(0, 2**64 - 1)),
        drawn=st.tuples(st.sampled_from(sorted(REGIMES)), st.integers(0, 2**16)),
    )
    @settings(
        max_examples=40 if is_exhaustive() else 5,
        deadline=None,
        derandomize=True,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.differing_executors),
    )
    def draw(
        heads: tuple[int, int],
        lengths: tuple[int, int],
        rest: tuple[int, str, float | None],
        dropout: tuple[float, int],
        drawn: tuple[str, int],
    ) -> None:
        batch, mask, scale = rest
        sizes = {"heads": heads[0], "kv_heads": heads[1], "q_len": lengths[0], "kv_len": lengths[1], "batch": batch}
        fitted = parse_mask(mask).clipped_to(batch, *lengths)
        drops = {"dropout": dropout[0], "dropout_seed": dropout[1]}
        problem = Problem(**sizes, mask=fitted, scale=scale, **drops, **build_of(variant), **fields)
        assert_right(variant, problem, *drawn)

    draw()


def weights_kept(variant: Variant, problem: Problem, tile: TileSizes | None = None) -> np.ndarray:
    """(b, h, rows, keys): what the kernel keeps. All weigh alike, and key k alone has a 1, in column k of V."""
    inputs = draw_inputs(problem, "normal", 0)
    kept = []
    for first in range(0, problem.kv_len, problem.head_dim):
        V = np.eye(problem.kv_len, dtype=inputs["V"].dtype)[:, first : first + problem.head_dim]
        V = np.pad(V, ((0, 0), (0, problem.head_dim - V.shape[1])))
        alike = {"Q": 0 * inputs["Q"], "V": np.ascontiguousarray(np.broadcast_to(V, inputs["V"].shape))}
        kept.append(run(variant, problem, inputs | alike, tile).outputs["O"] != 0)
    return np.concatenate(kept, axis=-1)[..., : problem.kv_len]


@each_variant
def test_each_weight_is_kept_or_not_as_the_contract_says(variant: Variant):
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 70, "kv_len": 200}
    for dropout in (0.4, 0.5, 0.9):  # the threshold has its highest bit from 0.5 on
        problem = Problem(**sizes, dropout=dropout, dropout_seed=LARGE_SEED, **build_of(variant))
        expected = kept_keys(problem, slice(0, 2), slice(0, 4), slice(0, 70))
        assert np.array_equal(weights_kept(variant, problem), expected)


@pytest.mark.exhaustive
@each_variant
def test_tiles_of_other_sizes_keep_the_same(variant: Variant):
    problem = Problem(heads=1, q_len=130, kv_len=144, dropout=0.5, dropout_seed=3, **build_of(variant))
    assert variant.tiles is not None
    tiles = variant.tiles(problem)
    expected = kept_keys(problem, slice(0, 1), slice(0, 1), slice(0, 130))
    chosen = [min(tiles, key=lambda tile: tile["Bc"]), max(tiles, key=lambda tile: tile["Bc"])]
    # On tensor cores: warps whose rows, and tiles whose keys, begin in the middle of a block of 32, or do not.
    if "warps" in tiles[0]:
        chosen = [*{(t["Br"] // t["warps"] % 32, t["Bc"] % 32): t for t in tiles}.values()]
    for tile in chosen:
        assert np.array_equal(weights_kept(variant, problem, tile), expected), tile


@each_variant
def test_tiles_that_begin_between_keys_of_a_call_are_refused(variant: Variant):
    problem = Problem(dropout=0.5, **build_of(variant))
    assert variant.tiles is not None
    tile = dict(variant.tiles(problem)[0])
    if "warps" in tile or variant.algorithm == "three-pass":
        return  # such tiles have a multiple of 16 keys, or no part in it
    with pytest.raises(PlanError, match="tiles have 20 keys; under dropout they have a multiple of 8"):
        variant.plan(problem, tile | {"Bc": 20})
    variant.plan(dataclasses.replace(problem, dropout=0.0), tile | {"Bc": 20})


@pytest.mark.exhaustive
@pytest.mark.parametrize("variant", [v for v in VARIANTS if "blocks" in v.takes], ids=lambda variant: variant.name)
def test_under_a_mask_of_blocks(variant: Variant):
    problem = Problem(heads=2, q_len=90, kv_len=120, mask="causal+blocks:16x24", dropout=0.3, dropout_seed=LARGE_SEED,
                      **build_of(variant))  # fmt: skip
    assert_right(variant, problem, "normal", 1)


@each_variant
def test_what_a_row_does_not_see_does_not_reach_it(variant: Variant):
    problem = Problem(heads=2, q_len=90, kv_len=90, mask="window:12,9", dropout=0.5, **build_of(variant))
    inputs = draw_inputs(problem, "normal", 2)
    clean = run(variant, problem, inputs).outputs["O"]
    first, end = problem.span(np.arange(problem.q_len))
    blind = (first > 49) | (end <= 49)
    poisoned = inputs | {"V": inputs["V"].copy()}
    poisoned["V"][:, :, 49] = np.nan
    dirty = run(variant, problem, poisoned).outputs["O"]
    assert np.array_equal(dirty[:, :, blind], clean[:, :, blind])
    kept = kept_keys(problem, slice(0, 1), slice(0, 2), slice(0, 90))[..., 49] & ~blind
    assert kept.any() and np.isnan(dirty[kept].astype(np.float32)).all()


DROPOUT_NUMBERS = 4
"""Threshold, the seed's two halves and the factor."""


def leaves(argument: object) -> int:
    """How many numbers and arrays an argument is made of; 0 for a feature that is off."""
    return sum(map(leaves, argument)) if isinstance(argument, tuple) else 1


def numbers_added(off: Plan, on: Plan) -> set[int]:
    """By how many numbers and arrays each launch of one plan has more than that of another."""
    return {leaves(after.args) - leaves(before.args) for before, after in zip(off.launches, on.launches, strict=True)}


@each_variant
def test_what_is_off_is_no_argument(variant: Variant):
    build = build_of(variant)
    off, on, seeded = (
        variant.plan(Problem(**build, **fields)) for fields in ({}, {"dropout": 0.5}, {"dropout_seed": 7})
    )
    assert numbers_added(off, on) | {0} == {0, DROPOUT_NUMBERS}
    assert numbers_added(off, seeded) == {0}


def test_others_refuse():
    with pytest.raises(UnsupportedProblem, match="does not support dropout"):
        make_plan(discover().registry.get("two-pass-cupy"), Problem(dropout=0.5))


# --- Gradients -------------------------------------------------------------------------------------------------------

BACKWARD = [v for v in discover().registry.select(None, "attention-backward") if DROPOUT in v.takes]


def gradient_build_of(variant: Variant) -> dict[str, object]:
    """See `build_of`."""
    takes_float32 = refusal_of(variant, BackwardProblem(head_dim=16)) is None
    return {"dtype": "float32" if takes_float32 else "float16", "head_dim": 16}


GRADIENT_MASKS = ("none", "causal", "window:20,3", "causal+window:33")


@pytest.mark.parametrize(
    "variant",
    exhaustive_unless(lambda variant: variant.name in ("bwd-fa2-cupy", "bwd-mma-cupy"), BACKWARD),
    ids=lambda variant: variant.name,
)
@given(
    heads=st.sampled_from(((1, 1), (3, 3), (4, 2), (6, 2))),
    lengths=st.tuples(LENGTHS, LENGTHS),
    rest=st.tuples(st.integers(1, 3), st.sampled_from(GRADIENT_MASKS), st.sampled_from(sorted(BACKWARD_REGIMES))),
    dropout=st.tuples(st.sampled_from((0.1, 0.5, 0.9, 2**-8)), st.integers(0, 2**64 - 1)),
)
@example(heads=(1, 1), lengths=(2, 1), rest=(2, "none", "subnormal"), dropout=(0.9, 0))  # V flushed, times ten
@settings(
    max_examples=40 if is_exhaustive() else 5,
    deadline=None,
    derandomize=True,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.differing_executors),
)
def test_gradients_and_bytes_whatever_the_shape(
    variant: Variant,
    heads: tuple[int, int],
    lengths: tuple[int, int],
    rest: tuple[int, str, str],
    dropout: tuple[float, int],
):
    batch, mask, regime = rest
    sizes = {"heads": heads[0], "kv_heads": heads[1], "q_len": lengths[0], "kv_len": lengths[1], "batch": batch}
    drops = {"dropout": dropout[0], "dropout_seed": dropout[1]}
    problem = BackwardProblem(**sizes, mask=mask, **drops, **gradient_build_of(variant))
    require_right(attempt(variant, problem, EXECUTOR, question=Question.draw(problem, regime, lengths[0])))
    assert variant.claim is not None
    assert variant.claim(problem) == variant.claim(dataclasses.replace(problem, dropout=0.0))


# A score of 37,515 is 37,632 in bfloat16, and exp of the difference, which should be 1, is beyond float32. Nothing else
# keeps the weight that drops out from becoming NaN.
@pytest.mark.parametrize(
    "variant",
    thorough_unless(lambda v: v.backend != "numba", [v for v in BACKWARD if "three-pass" in v.name]),
    ids=lambda variant: variant.name,
)
def test_scores_rounded_above_lse_give_finite_gradients(variant: Variant):
    problem = BackwardProblem(
        heads=1, q_len=12, kv_len=5, head_dim=256, dtype="bfloat16", scale=1.0, dropout=0.5, dropout_seed=0
    )
    done = attempt(variant, problem, EXECUTOR, question=Question.draw(problem, "overflow", 47552))
    # Such scores leave a budget that zeros are within, and it is not the budget that this is about.
    require_right(done)
    assert done.execution is not None
    assert all(np.isfinite(found.astype(np.float32)).all() for found in done.execution.outputs.values())


@pytest.mark.exhaustive
@pytest.mark.parametrize("variant", BACKWARD, ids=lambda variant: variant.name)
def test_gradients_in_tiles_of_other_sizes(variant: Variant):
    sizes = {"heads": 2, "kv_heads": 1, "q_len": 70, "kv_len": 100}
    problem = BackwardProblem(**sizes, dropout=0.4, dropout_seed=2**50, **gradient_build_of(variant))
    question = Question.draw(problem, "normal", 0)
    assert variant.tiles is not None
    tiles = variant.tiles(problem)
    for chosen in tiles[0]:
        for tile in (min(tiles, key=lambda tile: tile[chosen]), max(tiles, key=lambda tile: tile[chosen])):
            done = attempt(with_tile(variant, tile), problem, EXECUTOR, question=question)
            assert done.verdict == PASS, (tile, done.reason)


@pytest.mark.parametrize(
    "variant", exhaustive_unless(lambda variant: variant.backend == "cupy", BACKWARD), ids=lambda variant: variant.name
)
def test_of_gradients_what_is_off_is_no_argument(variant: Variant):
    build = gradient_build_of(variant)
    off, on = (variant.plan(BackwardProblem(**build, dropout=share)) for share in (0.0, 0.5))
    assert numbers_added(off, on) == {0, DROPOUT_NUMBERS}


def test_forward_and_backward_agree():
    """Gradients of one kernel from O and lse of another: those of the function that was computed."""
    problem = BackwardProblem(
        heads=2, q_len=50, kv_len=70, head_dim=16, mask="causal", dropout=0.5, dropout_seed=LARGE_SEED
    )
    inputs = draw_inputs(problem, "normal", 0)
    forward, backward = (discover().registry.get(name) for name in ("fa2-cupy", "bwd-fa2-cupy"))
    plain = Problem(**{field.name: getattr(problem, field.name) for field in dataclasses.fields(Problem)})
    left = run(forward, plain, {name: inputs[name] for name in "QKV"}).outputs
    done = run(backward, problem, inputs | {name: left[name] for name in ("O", "lse")}).outputs
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    moved = np.random.default_rng(0).standard_normal(inputs["V"].shape) * 1e-4

    def loss(V: np.ndarray, K: np.ndarray) -> float:
        return float((attention(problem, wide | {"V": V, "K": K})["O"] * wide["dO"]).sum())

    V, K = wide["V"], wide["K"]
    along_V, along_K = (float((done[name].astype(np.float64) * moved).sum()) for name in ("dV", "dK"))
    assert abs(loss(V + moved, K) - loss(V - moved, K) - 2 * along_V) < 1e-3 * abs(2 * along_V)
    assert abs(loss(V, K + moved) - loss(V, K - moved) - 2 * along_K) < 1e-3 * abs(2 * along_K)
