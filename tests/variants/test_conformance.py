"""One battery for every registered variant of attention: to be registered is all that it takes to be tested."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from attention_runs import (
    FEW,
    KERNELS,
    SANITIZER,
    USUAL_KERNELS,
    VARIANTS,
    accuracy,
    by_algorithm,
    compiles_soon,
    executed,
    kernels_taken_by,
    parametrize_few,
    parametrize_sampled,
    problems_taken_by,
    run,
    skip_unsupported,
)
from emulators import emulator
from hypothesis import HealthCheck, assume, given, settings, target
from hypothesis import strategies as st
from lanes import exhaustive, exhaustive_unless, is_exhaustive, thorough_unless

from harness.execution.run_settings import RunSettings
from harness.model.cases.case import Case
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.operation import draw_inputs, operation_of
from harness.model.variant import Variant
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.problem import Problem

# The rest of the range gets one problem each.
FURTHER_KERNELS = (("float32", 1), ("float16", 128), ("bfloat16", 256))


def declared(variant: Variant, problem: Problem, regime: str) -> bool:
    """Whether the variant says that it may fail there, as campaigns see it."""
    beyond = bool(variant.fails_in) and operation_of(problem).leaves_regime(Case(problem, regime))
    return beyond or regime in variant.fails_in


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


@parametrize_sampled(compiles_soon)
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
@pytest.mark.parametrize(("q_len", "kv_len", "mask"), exhaustive_unless(lambda case: case in WINDOWED[::3], WINDOWED))
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
