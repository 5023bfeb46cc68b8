"""FlashMask: which pairs it lets through, what kernels are told, and files that are none."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import Problem
from harness.model.operation import draw_inputs
from harness.operations.attention.masks import parse_mask
from harness.operations.attention.masks.flashmask import FlashMask
from harness.support.errors import ProblemError


def seen(mask: str, q_len: int, kv_len: int) -> list[str]:
    visible = Problem(heads=1, q_len=q_len, kv_len=kv_len, mask=parse_mask(mask)).seen()
    return ["".join("x" if x else "." for x in row) for row in visible]


def test_columns_are_the_papers(tmp_path: Path):
    path = str(tmp_path / "columns.npy")

    def seen_with(*columns: tuple[int, ...], mask: str = "") -> list[str]:
        np.save(path, np.array(columns, np.int32).T)
        return seen(f"{mask}flashmask:{path}", 4, 3)

    assert seen_with((0, 2, 4)) == [".xx", ".xx", "..x", "..x"]  # LTS
    assert seen_with((4, 2, 3), (0, 1, 2)) == ["x..", "xx.", "x.x", "x.."]  # LTS, UTE
    assert seen_with((1, 4, 4), (3, 4, 4), mask="causal+") == ["...", "...", ".x.", "xxx"]  # LTS, LTE
    assert seen_with((2, 4, 3), (3, 4, 4), (0, 0, 1), (1, 0, 2)) == [".xx", "xx.", ".xx", "xx."]  # LTS, LTE, UTS, UTE


def test_two_columns_change_their_meaning_with_the_causal_mask_alone():
    mask = parse_mask("flashmask:2,5")
    joined = mask & parse_mask("causal")
    assert joined.text == "causal+flashmask:2,5" and parse_mask(joined.text) == joined
    assert joined.without("causal") == mask != joined.parts[1]
    assert (mask & parse_mask("window:3")).parts[0] == mask


@given(
    mask=st.builds(FlashMask, st.sampled_from((1, 2, 4)), st.integers(0, 9)),
    causal=st.booleans(),
    q_len=st.integers(1, 30),
    kv_len=st.integers(1, 200),
)
def test_kernels_are_told_the_rows_that_do_not_see_a_key(mask: FlashMask, causal: bool, q_len: int, kv_len: int):
    problem = Problem(heads=1, q_len=q_len, kv_len=kv_len, mask=parse_mask("causal") & mask if causal else mask)
    told = draw_inputs(problem)["hidden_rows"]
    rows = np.arange(q_len)[:, None]
    hidden = np.zeros((q_len, kv_len), np.bool_)
    for start, end in told.reshape(-1, 2, kv_len):
        hidden |= (start <= rows) & (rows < end)
    if causal:
        hidden |= np.arange(kv_len) > rows + kv_len - q_len
    assert told.dtype == np.int32 and np.array_equal(problem.seen(), ~hidden)
    assert problem.keys_seen.tolist() == [(~hidden).sum(axis=1).tolist()]


def test_what_chance_decides_hides_some_of_everything():
    for columns in (1, 2, 4):
        share = [Problem(q_len=200, kv_len=300, mask=FlashMask(columns, seed)).seen().mean() for seed in range(9)]
        assert 0.2 < np.mean(share) < 0.8 and np.ptp(share) > 0.1


def test_a_problem_is_read_as_it_is_written(tmp_path: Path):
    np.save(tmp_path / "columns.npy", np.zeros((256, 4), np.int32))
    problem = Problem(mask=parse_mask(f"flashmask:{tmp_path / 'columns.npy'}"))
    assert Problem.from_fields(problem.to_short_fields()) == problem and problem.features == ("flashmask",)
    assert problem.tensors[3].name == "hidden_rows" and problem.tensors[3].shape == (4, 256)


@pytest.mark.parametrize("text", ["flashmask", "flashmask:3", "flashmask:4,x", "flashmask:mask.txt"])
def test_bad_masks_are_one_line(text: str):
    with pytest.raises(ProblemError, match=r"is not flashmask:FILE\.npy") as caught:
        parse_mask(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("array", [np.zeros((5, 3), np.int32), np.zeros(5, np.int32), np.zeros((5, 1))], ids=str)
def test_files_that_are_no_masks_are_one_line(tmp_path: Path, array: np.ndarray):
    np.save(tmp_path / "mask.npy", array)
    with pytest.raises(ProblemError, match=r"has to be an int32 array of \(keys, 1, 2 or 4 columns\), not") as caught:
        parse_mask(f"flashmask:{tmp_path / 'mask.npy'}")
    assert "\n" not in str(caught.value)


def test_masks_that_do_not_fit_are_one_line(tmp_path: Path):
    np.save(tmp_path / "mask.npy", np.zeros((5, 1), np.int32))
    with pytest.raises(ProblemError, match="has columns of 5 keys, and kv_len is 6"):
        Problem(kv_len=6, mask=parse_mask(f"flashmask:{tmp_path / 'mask.npy'}"))
    with pytest.raises(ProblemError, match="one mask that is not a run of keys"):
        Problem(mask=parse_mask("blocks:2x2,0+flashmask:1"))


def test_in_masks_by_chance_a_tile_is_not_hidden_as_its_first_keys_are():
    differing = 0
    for seed in range(8):
        hidden = FlashMask(1, seed).hidden_rows(200, 200)
        differing += any(
            hidden[0, key : key + 32].max() <= row < hidden[0, key + 32 : key + 64].max()
            and hidden[1, key : key + 64].min() > min(row + 63, 199)
            for key, row in itertools.product(range(0, 128, 64), range(0, 200, 64))
        )
    assert differing >= 2
