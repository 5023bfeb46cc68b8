from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import Problem
from harness.operations.attention.masks import NO_MASK, Mask, mask_help, mask_kinds, parse_mask
from harness.operations.attention.masks.causal import Causal
from harness.operations.attention.masks.window import Window
from harness.support.errors import ProblemError


@st.composite
def masks(draw: st.DrawFn) -> Mask:
    """Up to three of all kinds at once."""
    mask = NO_MASK
    for _ in range(draw(st.integers(0, 3))):
        kind = mask_kinds()[draw(st.sampled_from(sorted(mask_kinds())))]
        mask &= draw(st.sampled_from(kind.drawn(draw(st.integers(1, 9)))))
    return mask


@given(mask=masks(), q_len=st.integers(1, 30), kv_len=st.integers(1, 30))
def test_the_two_rules_agree(mask: Mask, q_len: int, kv_len: int):
    rows, keys = np.arange(q_len), np.arange(kv_len)
    visible = mask.visible(rows[:, None], keys[None, :], q_len, kv_len)
    first, end = mask.span(rows, q_len, kv_len)
    assert visible.shape == (q_len, kv_len) and first.shape == end.shape == (q_len,)
    assert ((first >= 0) & (end <= kv_len) & (end >= 0) & (first <= kv_len)).all()
    assert np.array_equal(visible, (first[:, None] <= keys) & (keys < end[:, None]))


@given(mask=masks())
def test_a_mask_is_read_as_it_is_written(mask: Mask):
    assert parse_mask(mask.text) == mask and hash(parse_mask(mask.text)) == hash(mask)
    problem = Problem(mask=mask)
    assert Problem.from_fields(problem.to_fields()) == problem
    assert problem.features == tuple(dict.fromkeys(part.kind for part in mask.parts))


def test_what_masks_let_rows_see():
    # Three rows and five keys: row 0 lies on key 2.
    rows, keys = np.arange(3)[:, None], np.arange(5)[None, :]

    def seen(text: str) -> list[str]:
        visible = parse_mask(text).visible(rows, keys, 3, 5)
        return ["".join("x" if x else "." for x in np.broadcast_to(row, 5)) for row in visible]

    assert seen("causal") == ["xxx..", "xxxx.", "xxxxx"]
    assert seen("window:1") == [".xxx.", "..xxx", "...xx"]
    assert seen("window:0,1") == ["..xx.", "...xx", "....x"]
    assert seen("causal+window:1") == [".xx..", "..xx.", "...xx"]
    assert seen("window:9+causal+window:1,9") == [".xx..", "..xx.", "...xx"]


def test_equal_masks_are_written_alike_in_any_order():
    assert parse_mask("window:3+causal").text == parse_mask("causal+window:3,3+causal").text == "causal+window:3"
    assert parse_mask("none") == NO_MASK and (Causal() & NO_MASK) == Causal()
    assert (Causal() & Window(3, 0)).without("causal") == Window(3, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("windw:8", "did you mean 'window'"),
        ("", "there is no ''"),
        ("causal+", "there is no ''"),
        ("causal:3", "takes nothing behind it"),
        ("window", "is not window:LEFT[,RIGHT]"),
        ("window:-1", "is not window:LEFT[,RIGHT]"),
        ("window:1,2,3", "is not window:LEFT[,RIGHT]"),
        ("window:9999999999999", "is not window:LEFT[,RIGHT]"),
    ],
)
def test_bad_masks_are_one_line(text: str, words: str):
    with pytest.raises(ProblemError) as caught:
        Problem(mask=text)  # type: ignore[arg-type]
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_mask_that_is_none_is_told():
    with pytest.raises(ProblemError, match="has to be a Mask, or text"):
        Problem(mask=3)  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match="left is -1"):
        Window(-1, 0)


def test_every_kind_has_a_word_a_spelling_and_something_to_draw():
    for word, kind in mask_kinds().items():
        assert kind.kind == word and kind.spelling.startswith(word) and kind.drawn(16)
        assert dataclasses.is_dataclass(kind)
    assert [spelling for spelling, _ in mask_help()] == ["none", *(kind.spelling for kind in mask_kinds().values())]
