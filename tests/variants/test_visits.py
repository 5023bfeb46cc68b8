"""Masks under which what a row sees is no run of keys: answers, bytes, tiles that are left out, what must not leak."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os

import numpy as np
import pytest
from attention_runs import (
    EXECUTOR,
    SANITIZER,
    USUAL_KERNELS,
    VARIANTS,
    accuracy,
    executed,
    kernels_taken_by,
    problems,
    run,
)
from claimed_traffic import bytes_by_buffer, claimed, counted, traffic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lanes import exhaustive_unless, is_exhaustive, thorough_unless
from twins import of_one_language

from harness.execution.planning.tiles import with_tile
from harness.execution.planning.variant_calls import declared_tiles, make_plan
from harness.model.operation import draw_inputs
from harness.model.variant import Variant
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.masks import parse_mask
from harness.operations.attention.problem import Problem

FURTHER = (
    *(f"documents:20+45+7+30+{other}" for other in ("blocks:32x8,3", "flashmask:4,3")),
    *(f"{other}flashmask:{columns},{columns}" for columns in (1, 2) for other in ("", "causal+")),
)
MASKS = (
    *(
        f"blocks:{size},{seed}"
        for seed, size in enumerate(("64x32", "128x16", "16x48", "33x31", "7x5", "1x1", "200x200"))
    ),
    *(f"{other}+blocks:{size}" for other in ("causal", "window:33,15") for size in ("64x32,8", "40x24,9")),
    *(f"{other}blocks:{size},heads" for other in ("", "causal+") for size in ("64x32,1", "33x70,2")),
    *(f"{other}flashmask:4,{seed}" for seed in (0, 1, 3, 8) for other in ("", "causal+")),
    # A compilation more each.
    *(FURTHER if is_exhaustive() else ()),
)
TAKERS = [variant for variant in VARIANTS if "blocks" in variant.takes]
KERNELS = USUAL_KERNELS if is_exhaustive() else (("float16", 48),)
each_variant = pytest.mark.parametrize(
    "variant", of_one_language(lambda variant: variant.name == "fa2-cupy", TAKERS), ids=lambda variant: variant.name
)


def named(value: Variant | str) -> str:
    return value if isinstance(value, str) else value.name


def is_compiled_here(variant: Variant, mask: str) -> bool:
    """Each kind of mask is a kernel of its own, and Numba takes longest: in the default lane of blocks alone."""
    return is_exhaustive() or variant.backend == "cupy" or "blocks" in mask


@st.composite
def masked(draw: st.DrawFn, variant: Variant) -> Problem:
    problem = draw(problems(kernels_taken_by(variant, KERNELS), masks=st.just("none")))
    mask = parse_mask(draw(st.sampled_from([mask for mask in MASKS if is_compiled_here(variant, mask)])))
    return dataclasses.replace(problem, mask=mask.clipped_to(problem.batch, problem.q_len, problem.kv_len))


@each_variant
@given(data=st.data(), regime=st.sampled_from(sorted(REGIMES)), seed=st.integers(0, 2**16))
@settings(
    max_examples=60 if is_exhaustive() else 25,
    deadline=None,  # the first example of a kernel compiles it
    derandomize="CI" in os.environ,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.differing_executors),
)
def test_answers_are_within_what_is_expected_and_claims_are_exact(
    variant: Variant, data: st.DataObject, regime: str, seed: int
):
    problem = data.draw(masked(variant), "problem")
    execution = executed(variant, problem, regime, seed)
    result = accuracy(variant, problem, regime, seed, execution)
    assert result.passed, result.reason
    assert not result.suspicious, result
    assert traffic(execution) == claimed(variant, problem)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("variant", "mask"),
    of_one_language(
        lambda pair: pair[0].name == "fa2-cupy",
        itertools.product(TAKERS, ("blocks:16x24,5", "causal+blocks:33x8,3", "flashmask:4,3")),
    ),
    ids=named,
)
def test_what_a_row_does_not_see_does_not_reach_it(variant: Variant, mask: str, poison: float):
    problem = Problem(heads=2, q_len=90, kv_len=90, head_dim=48, dtype="float16", mask=mask)  # type: ignore[arg-type]
    inputs = draw_inputs(problem, "normal", 2)
    clean = run(variant, problem, inputs).outputs["O"]
    seeing = problem.seen()[:, 41]
    assert seeing.any() and not seeing.all()
    for name in "KV":
        poisoned = {**inputs, name: inputs[name].copy()}
        poisoned[name][:, :, 41] = poison
        dirty = run(variant, problem, poisoned).outputs["O"]
        assert np.array_equal(dirty[:, :, ~seeing], clean[:, :, ~seeing])
        assert not np.any(np.isfinite(dirty[:, :, seeing].astype(np.float32)))


# Tiles of 4 x 4, and a checkerboard: each of the blocks is a tile, a quarter of one, or four of them.
@pytest.mark.parametrize(
    "variant",
    thorough_unless(lambda variant: variant.backend == "cupy", [v for v in TAKERS if v.algorithm == "fa2"]),
    ids=lambda variant: variant.name,
)
@pytest.mark.parametrize(("size", "tiles_read"), [(4, 8), (2, 16), (8, 8)])
def test_tiles_of_which_no_block_is_on_are_not_visited(
    variant: Variant, size: int, tiles_read: int, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    blocks = 16 // size
    np.save("checkers.npy", np.indices((blocks, blocks)).sum(axis=0) % 2 == 0)
    problem = Problem(heads=1, q_len=16, kv_len=16, head_dim=4, mask="blocks:checkers.npy")  # type: ignore[arg-type]
    execution = EXECUTOR.run(problem, variant.plan(problem, {"Br": 4, "Bc": 4}), draw_inputs(problem))
    read = bytes_by_buffer(execution, "load")
    assert (read["K"], read["V"]) == (tiles_read * 64, tiles_read * 64)
    assert variant.claim is not None
    assert traffic(execution) == variant.claim(problem, {"Br": 4, "Bc": 4})


@pytest.mark.parametrize(
    "variant", of_one_language(lambda variant: variant.name == "fa2-cupy", TAKERS), ids=lambda variant: variant.name
)
def test_tiles_that_are_hidden_whole_are_not_visited(variant: Variant, tmp_path, monkeypatch):
    """Keys of three tiles: seen by the first tile of rows, by all but the last one, and by the last row alone."""
    monkeypatch.chdir(tmp_path)
    assert variant.tiles is not None
    tile = variant.tiles(Problem(head_dim=48, dtype="float16", mask=parse_mask("flashmask:1")))[0]
    rows, keys = tile["Br"], tile["Bc"]
    q_len = 3 * rows
    columns = [(rows, q_len, 0, 0), (2 * rows, q_len, 0, 0), (q_len, q_len, 0, q_len - 1)]
    np.save("columns.npy", np.repeat(np.array(columns, np.int32), keys, axis=0))
    problem = Problem(heads=2, q_len=q_len, kv_len=3 * keys, head_dim=48, dtype="float16", mask="flashmask:columns.npy")  # type: ignore[arg-type]
    execution = counted(variant, problem)
    read = bytes_by_buffer(execution, "load")
    columns_read = 64 if variant.algorithm.startswith("fa3") else 48  # boxes bring zeros behind the rows' ends
    assert read["K"] == read["V"] == 2 * (1 + 2 + 1) * keys * columns_read * 2
    # One tile is mixed, and its keys' spans are read again by each warp, for each head, beside what extremes take.
    warps = {"fa2": 4, "fa3": rows // 16}.get(variant.algorithm) or tile["warps"]
    assert read["hidden_rows"] == 4 * 4 * keys * (3 + 2 * warps)
    assert traffic(execution) == claimed(variant, problem)


@each_variant
def test_half_of_the_blocks_move_half_of_the_bytes_of_keys(variant: Variant):
    plain = Problem(heads=2, q_len=512, kv_len=384, head_dim=48, dtype="float16")
    assert variant.tiles is not None
    tile = variant.tiles(dataclasses.replace(plain, mask=parse_mask("blocks:64x32,1")))[0]
    rows, keys = tile["Br"], tile["Bc"]
    blocks = dataclasses.replace(plain, mask=parse_mask(f"blocks:{rows}x{keys},1"))
    kept = blocks.seen()[::rows, ::keys]
    read, all_read = (bytes_by_buffer(counted(with_tile(variant, tile), each), "load") for each in (blocks, plain))
    assert read["K"] == kept.mean() * all_read["K"] and read["V"] == kept.mean() * all_read["V"]
    assert read["blocks"] == kept.size * 32  # a sector for each tile


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("variant", "mask"),
    exhaustive_unless(
        lambda pair: (pair[0].name, pair[1]) in (("fa2-mma-cupy", "blocks:33x7,1"), ("fa2-cupy", "flashmask:4,2")),
        itertools.product(TAKERS, ("blocks:33x7,1", "causal+blocks:64x32,2", "flashmask:4,2")),
    ),
    ids=named,
)
def test_no_races_and_no_unwritten_memory(variant: Variant, mask: str):
    problem = Problem(heads=2, kv_heads=1, q_len=130, kv_len=70, head_dim=48, dtype="float16", mask=mask)  # type: ignore[arg-type]
    findings = SANITIZER.check(variant, problem, variant.plan(problem), draw_inputs(problem, "normal", 1))
    assert findings == (), [finding.message for finding in findings]


@pytest.mark.parametrize("mask", ["flashmask:1,0", "blocks:64x64,1"])
@pytest.mark.parametrize("variant", TAKERS, ids=named)
def test_there_is_a_plan_for_every_tile_to_choose_from(variant: Variant, mask: str):
    problem = Problem(q_len=300, kv_len=300, dtype="float16", mask=mask)  # type: ignore[arg-type]
    for tile in declared_tiles(variant, problem):
        assert make_plan(with_tile(variant, tile), problem).launches
