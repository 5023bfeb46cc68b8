"""Blocks of several heads side by side, the longest first: how many heads, in which order, and answers either way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fa2_mma_runs import VARIANTS, assert_right, skip_further_compilation
from lanes import thorough_unless

from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.operations.attention_backward.problem import BackwardProblem
from variants._tiles import Tile, grids
from variants._tiles.grids import grid_side_by_side
from variants._tiles.schedule import Schedule

LONG = {"dtype": "bfloat16", "heads": 16, "head_dim": 128}
"""K and V of a head: 512 bytes for each key."""
REGISTRY = discover().registry


def grid_of(name: str, **fields: object) -> tuple[int, int, int]:
    variant = REGISTRY.get(name)
    problem = (BackwardProblem if name.startswith("bwd") else Problem)(**{**LONG, **fields})
    return variant.plan(problem).launches[1 if name.startswith("bwd") else -1].grid


@pytest.mark.parametrize(
    ("fields", "heads"),
    [
        ({"q_len": 4096, "kv_len": 4096, "mask": "causal"}, 16),  # 2 MiB each
        ({"q_len": 16384, "kv_len": 16384, "mask": "causal"}, 4),
        ({"q_len": 16384, "kv_len": 16384, "mask": "causal", "kv_heads": 4}, 16),  # four share them
        ({"q_len": 131072, "kv_len": 131072, "mask": "causal"}, 1),
        ({"q_len": 131072, "kv_len": 131072, "mask": "causal+window:1000"}, 16),  # of which little is met at a time
        ({"q_len": 4096, "kv_len": 4096}, 1),  # all blocks are as long
        ({"q_len": 4096, "kv_len": 4096, "mask": "documents:96+4000"}, 16),
        ({"q_len": 16384, "kv_len": 16384, "mask": "causal", "heads": 6}, 3),  # a divisor: 4 heads' K and V would fit
        ({"q_len": 64, "kv_len": 64, "batch": 60_000, "heads": 4}, 4),  # z has no more than 65,535
        ({"q_len": 64, "kv_len": 64, "batch": 20_000, "heads": 6}, 2),
    ],
)
def test_as_many_heads_start_side_by_side_as_leave_what_they_read_in_l2(fields: dict[str, object], heads: int):
    assert grid_of("fa2-mma-cupy", **fields)[0] == heads


@pytest.mark.parametrize(
    ("fields", "heads"),
    [
        ({"mask": "causal"}, 2),  # 16 MiB of Q, dO and dQ each
        ({"mask": "causal", "kv_heads": 4}, 1),
        ({}, 1),
        ({"mask": "documents:10000+6384"}, 16),  # by sequence
    ],
)
@pytest.mark.parametrize("name", ["bwd-mma-cupy", "bwd-fa3-cupy"])
def test_blocks_that_own_keys_start_side_by_side(name: str, fields: dict[str, object], heads: int):
    grid = grid_of(name, q_len=16384, kv_len=16384, **fields)
    assert grid == (heads, 128, fields.get("kv_heads", 16) // heads)


def test_more_heads_start_side_by_side_where_the_last_blocks_would_run_alone():
    """Four heads share K and V, so that few blocks are long ones: the L2 cache alone says one head at a time."""
    shape = {"q_len": 6000, "kv_len": 6000, "heads": 32, "kv_heads": 8, "head_dim": 128, "mask": "causal"}
    assert grid_of("bwd-mma-cupy", **shape)[0] == 1
    assert grid_of("bwd-fa3-cupy", **shape) == (4, 47, 2)


def test_blocks_that_wait_for_those_of_their_head_start_beside_others():
    shape = {"q_len": 8192, "kv_len": 8192, "head_dim": 128}  # 8 MiB of Q, dO and dQ each
    assert grid_of("bwd-fa3-cupy", **shape) == (1, 64, 16)
    assert grid_of("bwd-fa3-ordered-cupy", **shape) == (4, 64, 4)


def test_blocks_of_a_sequence_start_side_by_side_under_dropout():
    assert grid_of("bwd-mma-cupy", q_len=16384, kv_len=16384, dropout=0.1) == (16, 128, 1)


def test_a_grid_covers_all_rows_and_starts_with_the_longest():
    problem = Problem(**LONG, batch=3, q_len=1000, kv_len=1000, mask="causal")
    visits = Schedule(problem, Tile(128, 64)).visits
    heads, row_blocks, groups = grid_side_by_side(problem, 16, visits, tile_bytes=64 * 512, by_sequence=False)
    assert (heads, row_blocks, groups) == (16, 8, 3)
    started = np.repeat(visits[0][::-1], heads)  # of a group
    assert (np.diff(started) <= 0).all()
    assert started[0] == 16


LATER = pytest.mark.thorough
FEATURES: dict[str, dict[str, object]] = {
    "plain": {"mask": "causal"},
    "scores": {"mask": "causal", "alibi": True, "softcap": 20.0, "sinks": True},
    "dropout": {"mask": "causal", "dropout": 0.25, "head_dim": 16},  # the build of test_dropout_variants.py
    "blocks": {"mask": "causal+blocks:64x32,3"},
}


@pytest.mark.parametrize("heads_at_once", thorough_unless(lambda heads: heads == 2, [1, 2, 6]))
@pytest.mark.parametrize(
    ("variant", "features"),
    [
        pytest.param(variant, features, id=f"{variant.name}-{name}", marks=LATER if variant.backend == "numba" else ())
        for variant in VARIANTS
        for name, features in FEATURES.items()
        if name != "blocks" or name in variant.takes
    ],
)
def test_answers_and_bytes_are_the_same_however_many_heads_start_at_once(
    variant: Variant, features: dict[str, object], heads_at_once: int, monkeypatch: pytest.MonkeyPatch
):
    sizes = {"batch": 2, "heads": 6, "kv_heads": 3, "q_len": 200, "kv_len": 230, "head_dim": 48}
    problem = Problem(dtype="float16", **{**sizes, **features})
    skip_further_compilation(variant, problem)
    monkeypatch.setattr(grids, "heads_side_by_side", lambda *_: heads_at_once)
    heads_at_once = heads_at_once if problem.mask.is_band else 6
    assert variant.plan(problem).launches[-1].grid == (heads_at_once, 2, 12 // heads_at_once)
    assert_right(variant, problem, draw_inputs(problem, "normal", seed=1))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("fa2-cupy", {"q_len": 65_535 * 64 + 1, "kv_len": 1}),
        ("fa2-mma-numba", {"q_len": 65_535 * 128 + 1, "kv_len": 1, "dtype": "float16"}),
        ("bwd-fa2-numba", {"q_len": 1, "kv_len": 65_535 * 64 + 1}),
        ("bwd-fa2-ordered-cupy", {"q_len": 65_535 * 32 + 1, "kv_len": 1}),
    ],
)
def test_more_blocks_than_a_grid_has_along_y_are_refused_with_the_reason(name: str, fields: dict[str, Any]):
    variant = REGISTRY.get(name)
    kind = BackwardProblem if name.startswith("bwd") else Problem
    longest = "q_len" if fields["q_len"] != 1 else "kv_len"
    refusal = variant.supports(kind(heads=1, head_dim=64, **fields))
    assert refusal is not None and refusal.startswith(
        f"{longest} is {fields[longest]}; a grid has at most 65,535 blocks"
    )
    assert variant.supports(kind(heads=1, head_dim=64, **{**fields, longest: fields[longest] - 1})) is None
