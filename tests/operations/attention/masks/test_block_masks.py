"""Masks of blocks: which pairs they let through, what kernels are told, and files that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import Problem
from harness.model.operation import draw_inputs
from harness.operations.attention.masks import parse_mask
from harness.operations.attention.masks.blocks import Blocks
from harness.support.errors import ProblemError

GRID = np.array([[1, 0, 1], [0, 0, 1]], np.bool_)


@pytest.fixture
def file(tmp_path: Path) -> str:
    np.save(tmp_path / "grid.npy", GRID)
    return str(tmp_path / "grid.npy")


def seen(mask: str, q_len: int, kv_len: int) -> list[str]:
    visible = Problem(heads=1, q_len=q_len, kv_len=kv_len, mask=parse_mask(mask)).seen()
    return ["".join("x" if x else "." for x in row) for row in visible]


def test_blocks_of_a_file_cover_the_problem_or_have_the_size_that_is_said(file: str):
    assert seen(f"blocks:{file}", 4, 6) == ["xx..xx", "xx..xx", "....xx", "....xx"]
    assert seen(f"blocks:{file}", 3, 8) == ["xxx...xx", "xxx...xx", "......xx"]
    assert seen(f"blocks:{file},1x4", 2, 9) == ["xxxx....x", "........x"]
    assert seen(f"causal+blocks:{file}", 4, 6) == ["xx....", "xx....", "....x.", "....xx"]


@given(
    mask=st.builds(Blocks, st.tuples(st.integers(1, 9), st.integers(1, 9)), st.integers(0, 9)),
    q_len=st.integers(1, 30),
    kv_len=st.integers(1, 30),
)
def test_kernels_are_told_the_blocks_that_pairs_lie_in(mask: Blocks, q_len: int, kv_len: int):
    assert mask.size is not None
    (blocks,) = mask.array(3, q_len, kv_len)
    assert blocks.shape == mask.array_shape(q_len, kv_len)
    rows, keys = mask.size
    spread = np.kron(blocks, np.ones((rows, keys), np.bool_))[:q_len, :kv_len]
    problem = Problem(heads=1, q_len=q_len, kv_len=kv_len, mask=mask)
    assert np.array_equal(problem.seen(), spread)
    assert problem.keys_seen.tolist() == [spread.sum(axis=1).tolist()]
    assert problem.flops == 4 * 64 * int(spread.sum())
    told = draw_inputs(problem)["blocks"]
    assert told.dtype == np.int32 and np.array_equal(told, blocks[None])


def test_random_blocks_are_on_half_of_the_time_and_depend_on_the_seed():
    one, other = (Blocks((1, 1), seed).array(1, 200, 200)[0] for seed in (0, 1))
    assert abs(one.mean() - 0.5) < 0.01 and abs((one == other).mean() - 0.5) < 0.01
    assert abs((one[1:] == one[:-1]).mean() - 0.5) < 0.01 and abs((one[:, 1:] == one[:, :-1]).mean() - 0.5) < 0.01


@given(
    mask=st.builds(Blocks, st.tuples(st.integers(1, 9), st.integers(1, 9)), st.integers(0, 9), by_head=st.just(True)),
    heads=st.integers(1, 4),
)
def test_each_head_has_blocks_of_its_own_if_it_is_said(mask: Blocks, heads: int):
    problem = Problem(heads=heads, q_len=40, kv_len=30, mask=mask)
    told = draw_inputs(problem)["blocks"]
    assert mask.size is not None and parse_mask(mask.text) == mask
    assert told.shape == next(each.shape for each in problem.tensors if each.name == "blocks")
    spread = np.kron(told != 0, np.ones((1, *mask.size), np.bool_))[:, :40, :30]
    assert np.array_equal(np.stack([problem.seen(head=head) for head in range(heads)]), spread)
    assert np.array_equal(problem.keys_seen, spread.sum(axis=2)) and problem.flops == 4 * 64 * int(spread.sum())
    assert np.array_equal(told[0], Blocks(mask.size, mask.seed).array(1, 40, 30)[0])


def test_a_file_may_have_blocks_of_each_head(tmp_path: Path):
    np.save(tmp_path / "heads.npy", np.stack([GRID, ~GRID]))
    mask = parse_mask(f"blocks:{tmp_path / 'heads.npy'}")
    problem = Problem(heads=2, q_len=4, kv_len=6, mask=mask)
    assert np.array_equal(problem.seen(head=1), ~problem.seen(head=0))
    assert np.array_equal(draw_inputs(problem)["blocks"], np.stack([GRID, ~GRID]))
    with pytest.raises(ProblemError, match="its file has blocks of 2 heads, heads is 3"):
        Problem(heads=3, q_len=4, kv_len=6, mask=mask)


def test_a_problem_holds_the_path_and_the_digest_and_no_array(file: str):
    problem = Problem(heads=1, q_len=4, kv_len=6, mask=parse_mask(f"blocks:{file},2x2"))
    assert problem.mask.text == f"blocks:{file},2x2" and hash(problem) is not None
    assert Problem.from_fields(problem.to_short_fields()) == problem
    assert problem.features == ("blocks",)
    before = problem.mask
    np.save(file, ~GRID)
    assert parse_mask(f"blocks:{file},2x2") != before
    with pytest.raises(ProblemError, match="has changed since"):
        Problem(heads=1, q_len=4, kv_len=6, mask=before).seen()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("blocks", "is not blocks:FILE.npy"),
        ("blocks:0x4", "is not blocks:FILE.npy"),
        ("blocks:4x4,x", "is not blocks:FILE.npy"),
        ("blocks:nowhere.npy", "nowhere.npy: No such file"),
    ],
)
def test_bad_masks_are_one_line(text: str, words: str):
    with pytest.raises(ProblemError) as caught:
        parse_mask(text)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "array",
    [np.ones(3, np.bool_), np.ones((2, 2)), np.ones((0, 2), np.bool_), np.array([[None]])],
    ids=lambda a: str(a.dtype),
)
def test_files_that_are_no_masks_are_one_line(tmp_path: Path, array: np.ndarray):
    np.save(tmp_path / "mask.npy", array, allow_pickle=True)
    with pytest.raises(ProblemError) as caught:
        parse_mask(f"blocks:{tmp_path / 'mask.npy'}")
    assert "mask.npy: it" in str(caught.value) and "\n" not in str(caught.value)


def test_blocks_that_do_not_fit_are_one_line(file: str):
    with pytest.raises(ProblemError, match=r"has 2 x 3 blocks; of 2 x 2 each, 5 rows and 6 keys have 3 x 3: give the"):
        Problem(q_len=5, kv_len=6, mask=parse_mask(f"blocks:{file},2x2"))
    with pytest.raises(ProblemError, match="one mask that is not a run of keys"):
        Problem(mask=parse_mask("blocks:2x2,0+blocks:2x2,1"))
