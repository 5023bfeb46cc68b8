"""One battery for every variant of attention-backward: answers, claims, races, what is deterministic and what not."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import pytest
from emulators import emulator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lanes import exhaustive_unless, is_exhaustive, thorough_unless
from right_answers import require_right
from twins import of_one_language

from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import PASS
from harness.execution.planning.tiles import with_tile
from harness.execution.planning.variant_calls import refusal_of
from harness.execution.run_settings import RunSettings
from harness.model.cases.case import Case
from harness.model.discovery import discover
from harness.model.operation import draw_inputs, operation_named
from harness.model.tile_sizes import TileSizes
from harness.model.variant import Variant
from harness.operations.attention_backward.cases import BUILDS
from harness.operations.attention_backward.problem import BackwardProblem
from variants._tiles import MORE_SHARED_BYTES, SHARED_BYTES, Tile
from variants._tiles.backward import default_backward_tile
from variants._tiles.schedule import FLOAT32_BYTES
from variants.attention_backward import fa1, fa2, fa2_ordered, three_pass

OPERATION = operation_named("attention-backward")
VARIANTS = discover().registry.select(None, "attention-backward")
EXECUTOR = emulator()
SANITIZER = EmulatorSanitizer(shuffled_runs=1)
FIRST = ("float32", 16)
KERNELS = [FIRST, ("float16", 24), ("bfloat16", 33)]
"""A dtype and a head_dim are a compilation, of a few seconds in Numba: of all variants one, of few each."""
OF_16_BITS = ("float16", 24)
"""In the place of the first where a variant takes no float32."""
FEW = ("bwd-fa2-cupy", "bwd-three-pass-cupy")
ALGORITHMS = ("bwd-fa1", "bwd-fa2", "bwd-fa2-ordered", "bwd-three-pass")

each_variant = pytest.mark.parametrize(
    "variant",
    of_one_language(lambda variant: variant.name == "bwd-fa2-cupy", VARIANTS),
    ids=lambda variant: variant.name,
)


def few(variants: list[Variant]) -> pytest.MarkDecorator:
    some = exhaustive_unless(lambda variant: variant.name in FEW, variants)
    return pytest.mark.parametrize("variant", some, ids=lambda variant: variant.name)


few_variants = few(VARIANTS)
OF_ANY_LENGTH = [v for v in VARIANTS if refusal_of(v, BackwardProblem(dtype="bfloat16", head_dim=33)) is None]
"""Those that take rows of any number of elements. Others have cases of their own, in test_backward_fa3.py."""


def battery(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,  # the first example of a kernel compiles it
        derandomize="CI" in os.environ,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.differing_executors, HealthCheck.filter_too_much),
    )


def kernel_of(variant: Variant) -> tuple[str, int]:
    dtype, head_dim = FIRST
    return FIRST if refusal_of(variant, BackwardProblem(dtype=dtype, head_dim=head_dim)) is None else OF_16_BITS


def seen_pairs(problem: BackwardProblem) -> np.ndarray:
    """Which keys each row sees: (batch, q_len, kv_len)."""
    first, end = (np.broadcast_to(each, (problem.batch, problem.q_len))[..., None] for each in problem.spans)
    keys = np.arange(problem.kv_len)
    return (first <= keys) & (keys < end)


def is_of_float32(variant: Variant) -> bool:
    return kernel_of(variant) == FIRST


def problem_of(variant: Variant, **fields: Any) -> BackwardProblem:
    """A problem of the kernel that is compiled of all variants."""
    dtype, head_dim = kernel_of(variant)
    return BackwardProblem(dtype=dtype, head_dim=head_dim, **fields)


def builds(*kernels: tuple[str, int]):
    return [build for build in BUILDS if (build.forward.dtype, build.forward.head_dim) in kernels]


def mostly(variants: list[Variant]) -> pytest.MarkDecorator:
    some = [
        *of_one_language(lambda variant: variant.name == "bwd-fa2-cupy", filter(is_of_float32, variants)),
        *exhaustive_unless(is_of_float32, (variant for variant in variants if not is_of_float32(variant))),
    ]
    return pytest.mark.parametrize("variant", some, ids=lambda variant: variant.name)


mostly_float32 = mostly(VARIANTS)
"""Tiles on tensor cores are large, and so is what is compiled: in the default lane test_backward_mma.py and
test_backward_fa3.py have cases."""


def test_there_is_each_algorithm_in_each_language():
    assert {f"{name}-{language}" for name in ALGORITHMS for language in ("cupy", "numba")} <= {v.name for v in VARIANTS}


def holds(variant: Variant, case: Case) -> None:
    require_right(attempt(variant, case.problem, EXECUTOR, question=Question.pose(case.problem, case.inputs())))


@mostly_float32
@given(data=st.data())
@battery(60 if is_exhaustive() else 25)
def test_answers_are_within_what_is_expected_and_claims_are_exact(variant: Variant, data: st.DataObject):
    holds(variant, data.draw(OPERATION.cases(builds(kernel_of(variant)), 12, (), variant.takes)))


def with_another_tile(variant: Variant, problem: BackwardProblem) -> tuple[Variant, TileSizes]:
    """The variant with a tile of more rows than keys, not its default one, so that which is which shows."""
    assert variant.tiles is not None
    tile: TileSizes = next(t for t in variant.tiles(problem)[1:] if t == {"Br": 32, "Bc": 16} or t["Br"] > t["Bc"] > 8)
    return with_tile(variant, tile), tile


# Rows of 72 bytes, copied two floats at a time where that goes. One kernel for two tests: each takes seconds in Numba.
WITHIN_SECTORS = 18


@mostly(OF_ANY_LENGTH)
def test_claims_are_exact_where_heads_begin_within_a_sector(variant: Variant):
    # The second head begins at byte 24 of a sector.
    shape = problem_of(variant, heads=2, kv_heads=1, q_len=31, kv_len=5)
    problem = dataclasses.replace(shape, head_dim=WITHIN_SECTORS)
    tiled, _ = with_another_tile(variant, problem)
    done = attempt(tiled, problem, EXECUTOR, question=Question.draw(problem, "normal", 6))
    assert done.verdict == PASS and done.claim_holds, (done.reason, done.counted)


@pytest.mark.thorough
@few(OF_ANY_LENGTH)
@given(data=st.data())
@battery(20)
def test_so_they_are_in_16_bits_and_where_rows_are_no_whole_sectors(variant: Variant, data: st.DataObject):
    holds(variant, data.draw(OPERATION.cases(builds(*KERNELS[1:]), 12, (), variant.takes)))


WINDOWED = (
    # One key, and ends beside the edges of tiles; rows ahead of all keys and behind them; keys that nobody sees.
    (70, 70, "window:0"),
    (70, 70, "window:15,17"),
    (70, 70, "causal+window:33"),
    (100, 40, "causal"),
    (100, 40, "window:20"),
    (40, 100, "window:3,0"),
    (40, 100, "causal+window:31"),
    (1, 70, "window:7"),
    (70, 1, "window:0,69"),
)


# Runs that begin and end beside the edges of tiles, differ from sequence to sequence, and leave rows and keys alone.
RUNS = (
    (70, 70, "documents:30+40/5+0+65"),
    (70, 70, "causal+documents:33+37/16+15+39"),
    (33, 64, "causal+documents:16+48/64"),
    (100, 40, "documents:10+5+25"),
    (40, 100, "causal+prefix:20"),
    (100, 40, "prefix:7"),
    (70, 70, "window:5+documents:20+50/49+21"),
)


@each_variant
@pytest.mark.parametrize(("q_len", "kv_len", "mask"), [*WINDOWED, *RUNS])
def test_masks_wherever_they_end(variant: Variant, q_len: int, kv_len: int, mask: str):
    batch = 2 if "documents" in mask else 1
    # Where each row sees one key, dQ and dK are 0: what tells a head from its neighbour is dV, of more than one head.
    kv_heads = 2 if mask == "window:0" else 1
    heads = 3 * kv_heads
    problem = problem_of(variant, batch=batch, heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=kv_len, mask=mask)
    done = attempt(variant, problem, EXECUTOR, question=Question.draw(problem, "normal", 1))
    require_right(done)
    # Of one key alone, dQ of every row is the same 0.
    assert done.verdict == PASS or kv_len == 1, done.reason
    assert done.execution is not None
    # Who sees nobody has a gradient of 0, to the bit.
    seen = seen_pairs(problem)
    for name, found in done.execution.outputs.items():
        sees_nobody = ~seen.any(axis=2 if name == "dQ" else 1)
        assert np.all(np.moveaxis(found, 1, 2)[sees_nobody] == 0)


@each_variant
@pytest.mark.parametrize("mask", ["window:4,3", "causal+documents:20+14+30+6"])
@pytest.mark.parametrize("name", ["Q", "K", "V", "O", "dO", "lse"])
def test_nan_reaches_nobody_who_does_not_see_it(variant: Variant, name: str, mask: str):
    problem = problem_of(variant, heads=1, q_len=70, kv_len=70, mask=mask)
    (seen,) = seen_pairs(problem)
    inputs = draw_inputs(problem, "normal", 4)
    clean = EXECUTOR.run(problem, variant.plan(problem), inputs).outputs
    dirty = {**inputs, name: inputs[name].copy()}
    dirty[name][0, 0, 37] = np.nan
    found = EXECUTOR.run(problem, variant.plan(problem), dirty).outputs
    rows = np.flatnonzero(seen[:, 37]) if name in "KV" else np.array([37])
    keys = np.flatnonzero(seen[rows].any(axis=0))
    for output, reached in (("dQ", rows), ("dK", keys), ("dV", keys)):
        others = np.setdiff1d(np.arange(70), reached)
        np.testing.assert_array_equal(found[output][0, 0, others], clean[output][0, 0, others])
    assert np.isnan(found["dQ"][0, 0, rows].astype(np.float32)).all()


# The rest of the range gets one problem each.
FURTHER_KERNELS = (("float32", 1), ("float16", 128), ("bfloat16", 200), ("float32", 256))


@pytest.mark.thorough
@few(OF_ANY_LENGTH)
@pytest.mark.parametrize(
    ("dtype", "head_dim"),
    exhaustive_unless(lambda kernel: kernel[1] in (1, 200), FURTHER_KERNELS),
)
def test_every_head_dim_from_1_to_256(variant: Variant, dtype: str, head_dim: int):
    problem = BackwardProblem(heads=2, kv_heads=1, q_len=21, kv_len=19, head_dim=head_dim, dtype=dtype, mask="causal")
    if refusal_of(variant, problem) is not None:
        problem = dataclasses.replace(problem, dtype="bfloat16")
    done = attempt(variant, problem, EXECUTOR, question=Question.draw(problem, "normal", 5))
    assert done.verdict == PASS and done.claim_holds, done.reason


def test_longer_rows_are_out_of_reach_and_that_is_said():
    for variant in VARIANTS:
        problem = BackwardProblem(head_dim=257, dtype=kernel_of(variant)[0])
        assert "head_dim is 257" in (variant.supports(problem) or "")


@mostly(OF_ANY_LENGTH)
def test_other_tiles_give_the_same_answer_and_other_bytes(variant: Variant):
    shape = problem_of(variant, heads=2, kv_heads=1, q_len=70, kv_len=150, mask="causal")
    problem = dataclasses.replace(shape, head_dim=WITHIN_SECTORS)
    tiled, tile = with_another_tile(variant, problem)
    done = attempt(tiled, problem, EXECUTOR, question=Question.draw(problem, "normal", 1))
    assert done.verdict == PASS and done.claim_holds, done.reason
    assert variant.claim is not None
    assert variant.claim(problem, tile) != variant.claim(problem)


@pytest.mark.parametrize("head_dim", [1, 20, 33, 64, 65, 128, 129, 192, 250, 256])
@pytest.mark.parametrize("mask", ["causal", "causal+documents:20+44"])
def test_every_tile_that_is_offered_fits_shared_memory(head_dim: int, mask: str):
    problem = BackwardProblem(head_dim=head_dim, mask=mask)
    for algorithm in (fa1, fa2, fa2_ordered, three_pass):
        shared = getattr(algorithm, "shared_floats", None) or fa2.owning_keys_floats
        most_bytes = MORE_SHARED_BYTES if algorithm is fa2 else SHARED_BYTES
        for tile in (Tile(**sizes) for sizes in algorithm.tiles(problem)):
            kept = 2 * max(-(-side // 16) * 16 for side in (tile.Br, tile.Bc)) if "documents" in mask else 0
            of = problem if algorithm is fa2_ordered else head_dim
            assert (shared(of, tile) + kept) * FLOAT32_BYTES <= most_bytes, (algorithm, tile)


# As the papers have them, per query head, in bytes: X is a whole Q, K, dO ... in float32, without a mask.
LITERATURE = {
    # Q and dO are copied, which costs an eighth more where rows on chip begin in the middle of a sector.
    "bwd-fa2": lambda X, N, T: (4 * X + T * (2 * X * 9 // 8 + X + 8 * N), 4 * N + X + T * X + 2 * X),
    "bwd-fa2-ordered": lambda X, N, T: (4 * X + T * (2 * X + 8 * N) + 2 * X + 8 * N + T * 2 * X, 4 * N + 3 * X),
}
DEFAULT_TILES = {"bwd-fa2": fa2.default_tile, "bwd-fa2-ordered": default_backward_tile}


@pytest.mark.parametrize("algorithm", LITERATURE)
@pytest.mark.parametrize("N", [256, 1024])
def test_claims_are_the_formulas_of_the_literature(algorithm: str, N: int):
    problem = BackwardProblem(heads=3, q_len=N, kv_len=N, head_dim=64)
    read_bytes, write_bytes = LITERATURE[algorithm](N * 64 * 4, N, N // DEFAULT_TILES[algorithm](64).Bc)
    for variant in (v for v in VARIANTS if v.algorithm == algorithm):
        assert variant.claim is not None
        claim = variant.claim(problem)
        assert (claim.read_bytes, claim.write_bytes) == (3 * read_bytes, 3 * write_bytes)


@mostly_float32
def test_no_races_no_unwritten_memory_no_order_that_matters(variant: Variant):
    problem = problem_of(variant, heads=2, kv_heads=1, q_len=50, kv_len=70, mask="causal")
    findings = SANITIZER.check(variant, problem, variant.plan(problem), draw_inputs(problem, "normal", 1))
    assert findings == (), [finding.message for finding in findings]


@pytest.mark.parametrize("language", thorough_unless(lambda language: language == "cupy", ["cupy", "numba"]))
def test_sums_by_atomics_that_are_not_declared_are_a_finding(language: str):
    (variant,) = (v for v in VARIANTS if v.name == f"bwd-fa2-{language}")
    assert not variant.deterministic and {v.algorithm for v in VARIANTS if not v.deterministic} == {
        "bwd-fa2",
        "bwd-fa3",
        "bwd-mma",
    }
    undeclared = dataclasses.replace(variant, deterministic=True)
    # Ten tiles of keys: of two summands the order would not matter.
    problem = BackwardProblem(heads=1, q_len=20, kv_len=320, head_dim=16)
    findings = SANITIZER.check(undeclared, problem, variant.plan(problem), draw_inputs(problem, "normal", 1))
    assert [(finding.kind, finding.target) for finding in findings] == [("not deterministic", "buffer dQ")]


@each_variant
def test_bits_do_not_depend_on_threads_or_the_order_of_warps(variant: Variant):
    problem = problem_of(variant, heads=2, kv_heads=1, q_len=50, kv_len=70, mask="causal")
    inputs, plan = draw_inputs(problem, "normal", 3), variant.plan(problem)
    runs = [emulator(RunSettings(threads=t, seed=s)).run(problem, plan, inputs).outputs for t, s in ((1, 0), (2, 77))]
    for name in runs[0]:
        if variant.deterministic or name != "dQ":
            assert runs[0][name].tobytes() == runs[1][name].tobytes()
