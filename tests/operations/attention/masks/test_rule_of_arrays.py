"""A mask from the arrays that kernels are given, held against the rule that the oracle has, pair by pair."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.model.operation import operation_named
from harness.operations.attention.masks import Mask, mask_kinds, parse_mask, rule_of_arrays
from harness.operations.attention.problem import Problem

SHAPES = ((40, 40), (24, 57), (57, 24), (1, 33))
JOINED = (
    "causal+window:9",
    "window:4,20+window:15,3",
    "causal+documents:10+20+5/3+30",
    "prefix:12+window:30",
    "documents:7+13+window:9+blocks:5x7,1",
    "blocks:5x7,2,heads+causal",
    "causal+flashmask:2,3",
    "documents:9+11+flashmask:4,2",
)


def masks() -> Iterator[Mask]:
    for kind in mask_kinds().values():
        yield from kind.drawn(16)
    yield from map(parse_mask, JOINED)


def seen(problem: Problem) -> np.ndarray:
    """(batch, heads, q_len, kv_len), as indices that are broadcast give it."""
    arrays = operation_named("attention").derived_inputs(problem)
    rule = rule_of_arrays(problem, arrays)
    shape = (problem.batch, problem.heads, problem.q_len, problem.kv_len)
    told = True if rule is None else rule(*np.ogrid[tuple(slice(extent) for extent in shape)])
    return np.broadcast_to(told, shape)


def right(problem: Problem) -> np.ndarray:
    return np.stack([np.stack([problem.seen(b, h) for h in range(problem.heads)]) for b in range(problem.batch)])


@pytest.mark.parametrize("lengths", SHAPES, ids=lambda lengths: f"{lengths[0]}x{lengths[1]}")
def test_it_is_what_the_oracle_sees(lengths: tuple[int, int]) -> None:
    q_len, kv_len = lengths
    for mask in masks():
        problem = Problem(
            batch=2, heads=3, q_len=q_len, kv_len=kv_len, head_dim=4, mask=mask.clipped_to(2, q_len, kv_len)
        )
        np.testing.assert_array_equal(seen(problem), right(problem), err_msg=problem.mask.text)


def test_blocks_of_a_file_are_those_of_their_head(tmp_path: Path) -> None:
    np.save(tmp_path / "blocks.npy", np.random.default_rng(0).random((3, 4, 5)) < 0.5)
    problem = Problem(heads=3, q_len=30, kv_len=41, head_dim=4, mask=f"blocks:{tmp_path / 'blocks.npy'}")
    told = seen(problem)
    np.testing.assert_array_equal(told, right(problem))
    assert (told[:, 0] != told[:, 1]).any()


def test_without_a_mask_there_is_no_rule() -> None:
    assert rule_of_arrays(Problem(), {}) is None
