"""lean where blocks' runs of keys end: within output tiles, at their edges, and several to one tile."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from attention_runs import accuracy, executed
from claimed_traffic import traffic

from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.operations.attention.problem import Problem
from variants._mma.equal_runs import FEWEST_LEAN_TILES, LEAN_TILE, MOST_BLOCKS, Segments, blocks_for
from variants.attention.lean import work

VARIANT = discover().registry.get("lean-cupy")
SANITIZER = EmulatorSanitizer(shuffled_runs=2)
RUN = FEWEST_LEAN_TILES * LEAN_TILE
"""Fewest keys of a block."""
PROBLEM = Problem(batch=1, heads=2, kv_heads=1, q_len=1, kv_len=RUN, head_dim=24, dtype="float16")


def assert_right(problem: Problem) -> None:
    """The answer is right, and the bytes are those that are claimed."""
    execution = executed(VARIANT, problem, "rising", 1)
    result = accuracy(VARIANT, problem, "rising", 1, execution)
    assert result.passed, result.reason
    assert VARIANT.claim is not None
    assert traffic(execution) == VARIANT.claim(problem)


@pytest.mark.parametrize("kv_len", [1, 63, 65, RUN, RUN + 1, 2 * RUN, 2 * RUN + 1, 5 * RUN - 100])
def test_the_blocks_of_one_output_tile(kv_len: int):
    problem = dataclasses.replace(PROBLEM, kv_len=kv_len)
    assert work(problem).grid == -(-kv_len // RUN)
    assert_right(problem)


@pytest.mark.parametrize(
    ("tiles", "lean_tiles", "grid"),
    [(256, 128, 256), (1024, 32, 256), (40, 8, 40)],
)
def test_blocks_have_whole_output_tiles_where_these_are_equal(tiles: int, lean_tiles: int, grid: int):
    segments = Segments.of(np.full(tiles, lean_tiles))
    assert segments.block.max() + 1 == grid
    assert segments.is_whole.all()


def test_not_many_blocks_are_left_out_for_that():
    assert blocks_for(np.full(300, 128)) == MOST_BLOCKS  # not 150 with two each
    assert blocks_for(np.full(32, 512)) == MOST_BLOCKS  # not 32 with one each
    assert blocks_for(np.array([*[128] * 255, 127])) == MOST_BLOCKS  # unequal ones


@pytest.mark.parametrize("head_dim", [33, 50, 64])
def test_blocks_end_within_output_tiles_at_any_width_of_rows(head_dim: int):
    # 6 output tiles of 5 lean tiles in 4 blocks.
    problem = dataclasses.replace(PROBLEM, heads=6, kv_heads=3, batch=2, kv_len=300, head_dim=head_dim)
    assert work(problem).grid == 4
    assert_right(problem)


@pytest.mark.parametrize(
    ("q_len", "heads", "fields"),
    [
        (1, 3, {"sinks": True}),
        (5, 7, {"mask": "causal", "alibi": True}),
        (40, 3, {"mask": "window:200,3", "sinks": True}),
        (16, 2, {"mask": "window:700", "softcap": 5.0}),
        (3, 1, {"mask": "window:0"}),
    ],
)
def test_output_tiles_see_different_keys(q_len: int, heads: int, fields: dict[str, object]):
    assert_right(Problem.from_fields({**PROBLEM.to_fields(), "heads": heads, "q_len": q_len, "kv_len": 1500, **fields}))


def test_rows_that_see_no_key():
    assert_right(dataclasses.replace(PROBLEM, heads=2, kv_heads=2, q_len=100, kv_len=30, mask="causal"))


def test_blocks_may_come_in_any_order():
    """Several blocks between those that begin and end an output tile; the sanitizer runs blocks in several orders."""
    problem = dataclasses.replace(PROBLEM, batch=2, kv_len=3 * RUN - 200)
    findings = SANITIZER.check(VARIANT, problem, VARIANT.plan(problem), draw_inputs(problem, "normal", 0))
    assert findings == (), [finding.message for finding in findings]
