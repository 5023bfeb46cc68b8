"""One battery for every registered variant of attention: to be registered is all that it takes to be tested."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Sequence

import numpy as np
import pytest
from attention_answers import hold
from emulators import emulator
from hypothesis import HealthCheck, assume, given, settings, target
from hypothesis import strategies as st
from lanes import exhaustive, exhaustive_unless, is_exhaustive, thorough_unless

from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.judging.accuracy import Accuracy
from harness.execution.planning.variant_calls import refusal_of
from harness.execution.protocol import Execution
from harness.execution.run_settings import RunSettings
from harness.model.cases.case import Case
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.discovery import discover
from harness.model.numerics import Numerics
from harness.model.operation import Tolerance, draw_inputs, operation_of
from harness.model.plan import Plan
from harness.model.reference import Reference
from harness.model.tile_sizes import TileSizes
from harness.model.variant import Variant
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.masks import parse_mask
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem

VARIANTS = tuple(discover().registry.select(None, "attention"))
EXECUTOR = emulator()

# dtype and head_dim are compiled into most kernels and a compilation takes a second or two: there are few pairs to draw
# from: rows of whole sectors and odd ones, fewer elements than a warp has lanes, one more than that.
USUAL_KERNELS = (("float32", 64), ("float16", 48))
KERNELS = (*USUAL_KERNELS, *((("float32", 20), ("bfloat16", 33)) if is_exhaustive() else ()))
FEW = ("fa1-numba", "fa2-cupy", "fa2-mma-cupy", "split-kv-cupy")
"""Variants on which the default lane shows what all have in common."""
# The rest of the range gets one problem each.
FURTHER_KERNELS = (("float32", 1), ("float16", 128), ("bfloat16", 256))

# Alone and with causal; no key, half a tile, about a tile, more than there are keys.
WINDOWS = tuple(f"window:{left},{right}" for left in (0, 1, 15, 31, 33, 200) for right in (0, 16, 32, 200))
# Documents of one key, beside edges of tiles, longer than tiles, none; all are cut to the keys that there are.
DOCUMENTS = (
    "documents:1+0", "documents:31+2+64", "documents:1+1+1+32+33", "documents:0+16+0+17+96+1", "documents:129+1+1",
    "documents:7+7+7+7+7+7+7+7+7+7+7+7", "documents:63+1+70/5+40",
)  # fmt: skip
PREFIXES = tuple(f"prefix:{keys}" for keys in (0, 1, 31, 33, 64, 200))
OF_TWO = (
    "window:15,3+documents:1+31+70",
    "causal+documents:40+40",
    "window:20,2+prefix:33",
    "prefix:5+documents:30+33",
)
MASKS = (
    ("none", "causal"),
    (*WINDOWS, *(f"causal+{window}" for window in WINDOWS)),
    (*DOCUMENTS, *PREFIXES, *OF_TWO),
)
"""As often as each other: a plain one, a band, what is no band."""
ANY_MASK = st.one_of(*map(st.sampled_from, MASKS))

LENGTHS = st.one_of(st.sampled_from((1, 2, 16, 17, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129)), st.integers(1, 150))


@st.composite
def problems(
    draw: st.DrawFn,
    kernels: tuple[tuple[str, int], ...] = KERNELS,
    masks: st.SearchStrategy[str] = ANY_MASK,
) -> Problem:
    """Problems of a few tiles, with every rule of the game: groups, batches, masks, odd lengths, any scale."""
    dtype, head_dim = draw(st.sampled_from(kernels))
    kv_heads = draw(st.integers(1, 2))
    batch, kv_len = draw(st.integers(1, 2)), draw(LENGTHS)
    return Problem(
        batch=batch,
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        q_len=draw(LENGTHS),
        kv_len=kv_len,
        head_dim=head_dim,
        dtype=dtype,
        mask=parse_mask(draw(masks)).clipped_to(batch, kv_len),
        scale=draw(st.one_of(st.none(), st.sampled_from((1.0, -0.25, 0.0)))),
    )


def parametrize_few():
    """A few, in the thorough lane all."""
    few = thorough_unless(lambda variant: variant.name in FEW, VARIANTS)
    return pytest.mark.parametrize("variant", few, ids=lambda variant: variant.name)


def parametrize_sampled():
    """A few, in the exhaustive lane all: what takes further compilations."""
    few = exhaustive_unless(lambda variant: variant.name in FEW, VARIANTS)
    return pytest.mark.parametrize("variant", few, ids=lambda variant: variant.name)


def run(variant: Variant, problem: Problem, inputs: dict[str, np.ndarray], **tiles: TileSizes) -> Execution:
    plan: Plan = variant.plan(problem, **tiles)
    return EXECUTOR.run(problem, plan, inputs)


# One variant after the other is asked the same, and most of them declare what another one does.
@functools.lru_cache(maxsize=4)
def asked(problem: Problem, regime: str, seed: int) -> tuple[dict[str, np.ndarray], Reference]:
    inputs = draw_inputs(problem, regime, seed)
    return inputs, attention(problem, inputs)


@functools.lru_cache(maxsize=16)
def budget_of(problem: Problem, regime: str, seed: int, numerics: Numerics) -> dict[str, Tolerance]:
    return error_budget(problem, *asked(problem, regime, seed), numerics)


def executed(variant: Variant, problem: Problem, regime: str, seed: int, **tiles: TileSizes) -> Execution:
    return run(variant, problem, asked(problem, regime, seed)[0], **tiles)


def accuracy(variant: Variant, problem: Problem, regime: str, seed: int, execution: Execution) -> Accuracy:
    reference = asked(problem, regime, seed)[1]
    return hold(execution.outputs, reference, budget_of(problem, regime, seed, variant.numerics))


def is_compiled_here(variant: Variant, problem: Problem) -> bool:
    """Masks that are no band are a kernel of their own: in the default lane of some variants, and of one type."""
    return is_exhaustive() or problem.mask.is_band or (variant.name in FEW and problem.dtype == "float16")


def kernels_taken_by(variant: Variant, kernels: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Those pairs of dtype and head_dim that the variant takes."""
    return tuple((t, d) for t, d in kernels if refusal_of(variant, Problem(dtype=t, head_dim=d)) is None)


@functools.cache
def problems_taken_by(variant: Variant, kernels: tuple[tuple[str, int], ...] = KERNELS) -> st.SearchStrategy[Problem]:
    """Problems of the variant's kernels with masks that it takes and that this lane compiles."""

    def masks_of(dtype: str, head_dim: int) -> st.SearchStrategy[str]:
        def is_taken(mask: str) -> bool:
            problem = Problem(dtype=dtype, head_dim=head_dim)
            problem = dataclasses.replace(problem, mask=parse_mask(mask).clipped_to(problem.batch, problem.kv_len))
            return refusal_of(variant, problem) is None and is_compiled_here(variant, problem)

        taken = (tuple(filter(is_taken, masks)) for masks in MASKS)
        return st.one_of(*(st.sampled_from(masks) for masks in taken if masks))

    return st.one_of([problems((kernel,), masks_of(*kernel)) for kernel in kernels_taken_by(variant, kernels)])


def declared(variant: Variant, problem: Problem, regime: str) -> bool:
    """Whether the variant says that it may fail there, as campaigns see it."""
    beyond = bool(variant.fails_in) and operation_of(problem).leaves_regime(Case(problem, regime))
    return beyond or regime in variant.fails_in


def skip_unsupported(variant: Variant, problem: Problem) -> None:
    reason = refusal_of(variant, problem)
    if reason is not None:
        pytest.skip(reason)


@parametrize_few()
@given(data=st.data(), regime=st.sampled_from(sorted(REGIMES)), seed=st.integers(0, 2**16))
@settings(
    max_examples=60 if is_exhaustive() else 20,
    deadline=None,  # the first example of a kernel compiles it
    derandomize="CI" in os.environ,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.differing_executors),
)
def test_every_output_is_within_what_is_expected(variant: Variant, data: st.DataObject, regime: str, seed: int):
    problem = data.draw(problems_taken_by(variant), "problem")
    assume(not declared(variant, problem, regime))
    result = accuracy(variant, problem, regime, seed, executed(variant, problem, regime, seed))
    assert result.passed, result.reason
    assert not result.suspicious, result
    target(result.error_over_expected)


@parametrize_sampled()
@pytest.mark.parametrize(("dtype", "head_dim"), exhaustive_unless(lambda kernel: kernel[1] == 1, FURTHER_KERNELS))
def test_every_head_dim_from_1_to_256(variant: Variant, dtype: str, head_dim: int):
    problem = Problem(heads=2, kv_heads=1, q_len=37, kv_len=41, head_dim=head_dim, dtype=dtype, mask="causal")
    skip_unsupported(variant, problem)
    result = accuracy(variant, problem, "normal", 5, executed(variant, problem, "normal", 5))
    assert result.passed, result.reason


@parametrize_few()
@pytest.mark.parametrize(("dtype", "head_dim"), [("float32", 64), ("float16", 48)])
def test_rows_that_see_no_key_give_zero_and_minus_infinity(variant: Variant, dtype: str, head_dim: int):
    # 70 rows and 3 keys: whole tiles of rows see nothing, and the tile with the first seeing row is mixed.
    problem = Problem(heads=1, q_len=70, kv_len=3, head_dim=head_dim, dtype=dtype, mask="causal")
    skip_unsupported(variant, problem)
    inputs = draw_inputs(problem, "normal", 1)
    outputs = run(variant, problem, inputs).outputs
    blind, seeing = slice(None, 67), slice(67, None)
    assert np.array_equal(outputs["O"][0, 0, blind], np.zeros((67, head_dim)))
    assert np.all(outputs["O"][0, 0, seeing].astype(np.float64) != 0)
    if "lse" in outputs:
        assert np.all(np.isneginf(outputs["lse"][0, 0, blind]))
        assert np.all(np.isfinite(outputs["lse"][0, 0, seeing]))


WINDOWED = (
    # A window of one key and of all; ends on the edge of a tile of 32 keys and beside it, both ways; one way only.
    *((150, 150, mask) for mask in ("window:0", "window:500", "causal+window:500", "causal+window:0")),
    *((96, 96, f"window:{left},{right}") for left, right in ((31, 32), (32, 31), (33, 30), (32, 0), (0, 33), (64, 64))),
    # More rows than keys: the first rows see nothing, with a window to the right later ones do.
    *((150, 70, mask) for mask in ("window:0", "window:20", "window:5,40", "causal+window:33")),
    # More keys than rows: whole tiles of keys ahead of all windows, and behind them.
    *((40, 200, mask) for mask in ("window:0", "window:20", "causal+window:64", "window:150,3")),
    (1, 100, "window:7"),
    (100, 1, "window:7"),
)


@parametrize_few()
@pytest.mark.parametrize(("q_len", "kv_len", "mask"), WINDOWED)
def test_windows_wherever_they_end(variant: Variant, q_len: int, kv_len: int, mask: str):
    problem = Problem(heads=2, kv_heads=1, q_len=q_len, kv_len=kv_len, head_dim=48, dtype="float16", mask=mask)
    skip_unsupported(variant, problem)
    execution = executed(variant, problem, "rising", 7)
    result = accuracy(variant, problem, "rising", 7, execution)
    assert result.passed, result.reason
    first, end = problem.span(np.arange(q_len))
    assert np.all(execution.outputs["O"][:, :, end <= first] == 0)
    if "lse" in execution.outputs:
        assert np.array_equal(np.isneginf(execution.outputs["lse"][0, 0]), end <= first)


SPANS = (
    # Boundaries on and beside edges of tiles, one key alone, documents that are longer than tiles, or empty.
    (150, 150, "documents:31+1+64+0+54"),
    (130, 130, "documents:1+1+1+127"),
    (96, 96, "documents:33+31+32"),
    # More rows than keys: the first rows are of no document. More keys than rows: whole tiles of keys are nobody's.
    (150, 70, "documents:40+1+29"),
    (40, 200, "documents:150+30+20"),
    (1, 100, "documents:93+7"),
    (70, 90, "documents:60+30/1+89"),
    (150, 150, "window:20,9+documents:64+5+81"),
    (150, 150, "causal+documents:100+50"),
    (96, 96, "prefix:33"),
    (150, 70, "prefix:20"),
    (40, 200, "prefix:190"),
    (150, 150, "window:40,3+prefix:64"),
)
"""Rows, keys, and a mask that is no band."""


@parametrize_sampled()
@pytest.mark.parametrize(("q_len", "kv_len", "mask"), SPANS)
def test_documents_and_prefixes_wherever_they_end(variant: Variant, q_len: int, kv_len: int, mask: str):
    batch = 2 if "/" in mask else 1
    problem = Problem(
        batch=batch, heads=2, kv_heads=1, q_len=q_len, kv_len=kv_len, head_dim=48, dtype="float16", mask=mask
    )
    skip_unsupported(variant, problem)
    execution = executed(variant, problem, "rising", 7)
    result = accuracy(variant, problem, "rising", 7, execution)
    assert result.passed, result.reason
    for sequence in range(batch):
        first, end = problem.span(np.arange(q_len), sequence)
        assert np.all(execution.outputs["O"][sequence][:, end <= first] == 0)
        if "lse" in execution.outputs:
            assert np.array_equal(np.isneginf(execution.outputs["lse"][sequence, 0]), end <= first)


@parametrize_sampled()
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize(("dtype", "head_dim"), exhaustive_unless(lambda kernel: kernel[0] == "float16", USUAL_KERNELS))
def test_what_is_of_another_document_does_not_reach_a_row(variant: Variant, dtype: str, head_dim: int, poison: float):
    # Key 49 lies in the middle of a tile of keys, and in each sequence documents begin and end in that tile.
    problem = Problem(
        batch=2, heads=2, q_len=90, kv_len=90, head_dim=head_dim, dtype=dtype, mask="documents:48+3+39/50+40"
    )
    skip_unsupported(variant, problem)
    inputs = draw_inputs(problem, "normal", 2)
    clean = run(variant, problem, inputs).outputs["O"]
    rows = np.arange(90)
    seeing = np.stack([(48 <= rows) & (rows < 51), rows < 50])
    for name in "KV":
        poisoned = {**inputs, name: inputs[name].copy()}
        poisoned[name][:, :, 49] = poison
        dirty = run(variant, problem, poisoned).outputs["O"]
        for sequence in range(2):
            sees = seeing[sequence]
            assert np.array_equal(dirty[sequence][:, ~sees], clean[sequence][:, ~sees])
            assert not np.any(np.isfinite(dirty[sequence][:, sees].astype(np.float32)))


@parametrize_few()
@pytest.mark.parametrize(("dtype", "head_dim"), KERNELS)
def test_exact_answers_are_rounded_to_nearest_even(variant: Variant, dtype: str, head_dim: int):
    # q = 0 gives each of 16 keys the weight 1/16, and sums of 16 small integers are exact in float32. What is left is
    # one rounding to 16 bits; that of sixteenths meets ties, too.
    problem = Problem(heads=2, q_len=5, kv_len=16, head_dim=head_dim, dtype=dtype)
    skip_unsupported(variant, problem)
    largest = 2**8 if dtype == "bfloat16" else 2**11  # integers up to here are exact
    if variant.numerics.factors == "e4m3":
        largest = 2**4
    v = np.random.default_rng(6).integers(-largest, largest, problem.kv_shape)
    inputs = draw_inputs(problem, "normal", 6)
    inputs["Q"][:] = 0
    inputs["V"][:] = v
    expected = (v.sum(axis=2, keepdims=True) / 16).astype(NUMPY_DTYPES[dtype])
    output = run(variant, problem, inputs).outputs["O"]
    np.testing.assert_array_equal(output, np.broadcast_to(expected, output.shape))


@parametrize_few()
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize(("dtype", "head_dim"), USUAL_KERNELS)
def test_what_a_row_does_not_see_does_not_reach_it(variant: Variant, dtype: str, head_dim: int, poison: float):
    # The last key lies on the last row's diagonal: in the same tiles as keys that all rows see, and a zero weight
    # times NaN or infinity is NaN.
    problem = Problem(heads=2, q_len=40, kv_len=40, head_dim=head_dim, dtype=dtype, mask="causal")
    skip_unsupported(variant, problem)
    inputs = draw_inputs(problem, "normal", 2)
    clean = run(variant, problem, inputs).outputs["O"]
    for name in "KV":
        poisoned = {**inputs, name: inputs[name].copy()}
        poisoned[name][:, :, -1] = poison
        dirty = run(variant, problem, poisoned).outputs["O"]
        assert np.array_equal(dirty[:, :, :-1], clean[:, :, :-1])
        assert not np.any(np.isfinite(dirty[:, :, -1].astype(np.float32)))


@parametrize_few()
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("mask", ["window:12,9", "causal+window:12"])
@pytest.mark.parametrize(("dtype", "head_dim"), [("float32", 64), ("float16", 48)])
def test_what_lies_beside_a_window_does_not_reach_its_row(
    variant: Variant, dtype: str, head_dim: int, mask: str, poison: float
):
    # Key 49 lies in the middle of a tile of keys, ahead of the windows of rows 62 on and behind those of earlier ones.
    problem = Problem(heads=2, q_len=90, kv_len=90, head_dim=head_dim, dtype=dtype, mask=mask)
    skip_unsupported(variant, problem)
    inputs = draw_inputs(problem, "normal", 2)
    clean = run(variant, problem, inputs).outputs["O"]
    first, end = problem.span(np.arange(problem.q_len))
    blind = (first > 49) | (end <= 49)
    assert blind[:40].all() and not blind[49:62].any() and blind[62:].all()
    for name in "KV":
        poisoned = {**inputs, name: inputs[name].copy()}
        poisoned[name][:, :, 49] = poison
        dirty = run(variant, problem, poisoned).outputs["O"]
        assert np.array_equal(dirty[:, :, blind], clean[:, :, blind])
        assert not np.any(np.isfinite(dirty[:, :, ~blind].astype(np.float32)))


@parametrize_few()
@pytest.mark.parametrize(("dtype", "head_dim"), exhaustive_unless(lambda kernel: kernel[0] == "float32", USUAL_KERNELS))
def test_shared_products_start_at_the_last_rows_window(variant: Variant, dtype: str, head_dim: int):
    # In the block of rows 128 to 191 all rows see keys 89 to 128, and only the last one does not see key 88, which is
    # the first of four that a vector would bring together.
    problem = Problem(heads=1, q_len=200, kv_len=200, head_dim=head_dim, dtype=dtype, mask="causal+window:102")
    skip_unsupported(variant, problem)
    inputs = draw_inputs(problem, "normal", 2)
    clean = run(variant, problem, inputs).outputs["O"]
    poisoned = {**inputs, "V": inputs["V"].copy()}
    poisoned["V"][:, :, 88] = math.nan
    dirty = run(variant, problem, poisoned).outputs["O"]
    first, end = problem.span(np.arange(problem.q_len))
    blind = (first > 88) | (end <= 88)
    assert blind[191] and not blind[190]
    assert np.array_equal(dirty[:, :, blind], clean[:, :, blind])
    assert np.all(np.isnan(dirty[:, :, ~blind].astype(np.float32)))


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


@parametrize_sampled()
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_any_tile_sizes_give_the_answer(variant: Variant, tile: TileSizes, causal: bool):
    problem = Problem(heads=2, kv_heads=1, q_len=9, kv_len=23, head_dim=4, mask="causal" if causal else "none")
    skip_unsupported(variant, problem)
    execution = executed(variant, problem, "rising", 4, **tile_argument(variant, tile))
    result = accuracy(variant, problem, "rising", 4, execution)
    assert result.passed, result.reason


@parametrize_few()
def test_bits_do_not_depend_on_threads_or_the_order_of_warps(variant: Variant):
    problem = Problem(heads=4, kv_heads=2, q_len=70, kv_len=97, head_dim=64, mask="causal")
    skip_unsupported(variant, problem)
    inputs = draw_inputs(problem, "normal", 3)
    plan = variant.plan(problem)
    runs = [
        emulator(RunSettings(threads=threads, seed=seed)).run(problem, plan, inputs)
        for threads, seed in ((1, 0), (2, 0), (5, 0), (2, 77))
    ]
    for other in runs[1:]:
        assert {n: a.tobytes() for n, a in other.outputs.items()} == {
            n: a.tobytes() for n, a in runs[0].outputs.items()
        }
        assert [(r.traffic, r.warp_instructions) for r in other.launches] == [
            (r.traffic, r.warp_instructions) for r in runs[0].launches
        ]


SANITIZER = EmulatorSanitizer(shuffled_runs=1)
# The first that a variant takes: in 16 bits it has every kernel of every variant, rounding included. Tensor maps want
# rows of whole 16 bytes.
SANITIZED_KERNELS = (("float16", 20), ("float32", 20), ("float16", 24))


@pytest.mark.parametrize(
    "variant",
    [
        *thorough_unless(lambda variant: variant.name == "fa2-cupy", (v for v in VARIANTS if v.name in FEW)),
        *exhaustive(v for v in VARIANTS if v.name not in FEW),
    ],
    ids=lambda variant: variant.name,
)
@given(data=st.data(), seed=st.integers(0, 2**16))
@settings(
    max_examples=8,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.differing_executors),
)
def test_no_races_no_unwritten_memory_no_order_that_matters(variant: Variant, data: st.DataObject, seed: int):
    kernels = kernels_taken_by(variant, SANITIZED_KERNELS)
    if not kernels:
        pytest.skip("it takes none of these types")
    problem = data.draw(problems_taken_by(variant, kernels[:1]), "problem")
    findings = SANITIZER.check(variant, problem, variant.plan(problem), draw_inputs(problem, "normal", seed))
    assert findings == (), [finding.message for finding in findings]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"head_dim": 257}, "head_dim is 257"),
        ({"batch": 65_536}, "batch is 65536"),
        ({"scale": 1e300}, "scale is 1e"),
    ],
)
@pytest.mark.parametrize(
    "algorithm", ["three-pass", "three-pass-recompute", "two-pass", "fa1", "fa2", "row-wise", "native"]
)
def test_what_is_out_of_reach_is_said(algorithm: str, fields: dict[str, object], reason: str):
    assert by_algorithm(algorithm)
    for variant in by_algorithm(algorithm):
        assert variant.supports(Problem()) is None
        said = variant.supports(Problem(**fields))
        assert said is not None and reason in said


SEQUENCES = (512, 1024, 2048, 4096, 8192)


@functools.cache
def by_algorithm(algorithm: str) -> tuple[Variant, ...]:
    return tuple(v for v in VARIANTS if v.algorithm == algorithm)


@pytest.mark.parametrize(
    ("algorithm", "printed_mib"),
    [
        ("three-pass", ("1.06", "4.12", "16.25", "64.50", "257.00")),
        ("fa2", ("0.06", "0.12", "0.25", "0.50", "1.00")),
        *(
            (algorithm, ("0.06", "0.12", "0.25", "0.50", "1.00"))
            for algorithm in ("two-pass", "three-pass-recompute", "row-wise", "native")
        ),
    ],
)
def test_allocated_bytes_are_those_of_the_literature(algorithm: str, printed_mib: tuple[str, ...]):
    assert by_algorithm(algorithm)
    for variant in by_algorithm(algorithm):
        for length, printed in zip(SEQUENCES, printed_mib, strict=True):
            problem = Problem(heads=1, q_len=length, kv_len=length, head_dim=64, dtype="float16")
            plan = variant.plan(problem)
            lse_bytes = sum(buffer.size_bytes for buffer in plan.buffers if buffer.name == "lse")
            # Rounded half down, as printed: 4.125 -> 4.12, 0.125 -> 0.12.
            assert f"{(plan.allocated_bytes(problem) - lse_bytes) / 2**20 - 1e-9:.2f}" == printed
