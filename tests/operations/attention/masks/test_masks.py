from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import Problem
from harness.model.operation import draw_inputs
from harness.operations.attention.masks import (
    END_ROWS,
    FIRST_ROWS,
    NO_MASK,
    Mask,
    mask_help,
    mask_kinds,
    parse_mask,
    runs_of_keys,
)
from harness.operations.attention.masks.blocks import Blocks
from harness.operations.attention.masks.causal import Causal
from harness.operations.attention.masks.documents import Documents
from harness.operations.attention.masks.flashmask import FlashMask
from harness.operations.attention.masks.prefix import Prefix
from harness.operations.attention.masks.varlen import Varlen
from harness.operations.attention.masks.window import Window
from harness.support.errors import ProblemError

NO_RUNS = {Blocks.kind, FlashMask.kind}


@st.composite
def masks(draw: st.DrawFn) -> Mask:
    """Up to three of all kinds at once, but for unpadded sequences, which lie differently: test_varlen_masks.py."""
    mask = NO_MASK
    for _ in range(draw(st.integers(0, 3))):
        kinds = sorted(set(mask_kinds()) - {Varlen.kind} - (set() if mask.is_run else NO_RUNS))  # one of these
        kind = mask_kinds()[draw(st.sampled_from(kinds))]
        mask &= draw(st.sampled_from(kind.drawn(draw(st.integers(1, 9)))))
    return mask


@given(mask=masks(), batch=st.integers(1, 3), q_len=st.integers(1, 30), kv_len=st.integers(1, 30))
def test_the_two_rules_agree_and_kernels_can_rely_on_runs(mask: Mask, batch: int, q_len: int, kv_len: int):
    mask = mask.clipped_to(batch, q_len, kv_len)
    assert mask.why_invalid(batch, q_len, kv_len) is None and mask.clipped_to(batch, q_len, kv_len) == mask
    assert mask.sequences in (1, batch)
    rows, keys = np.arange(q_len), np.arange(kv_len)
    place = rows + kv_len - q_len
    for sequence in range(batch):
        own = mask.of_sequence(sequence).of_head(1)
        visible = own.visible(rows[:, None], keys[None, :], q_len, kv_len)
        first, end = own.span(rows, q_len, kv_len)
        assert visible.shape == (q_len, kv_len) and first.shape == end.shape == (q_len,)
        assert ((first >= 0) & (end <= kv_len) & (end >= 0) & (first <= kv_len)).all()
        in_span = (first[:, None] <= keys) & (keys < end[:, None])
        if not own.is_run:
            assert not (visible & ~in_span).any()
            own = own.runs
            visible, (first, end) = in_span, own.span(rows, q_len, kv_len)
        assert np.array_equal(visible, in_span)
        # What `Mask.span` promises besides.
        assert (np.diff(first) >= 0).all() and (np.diff(end) >= 0).all()
        assert ((first <= place) & (place < end))[place >= 0].all()


@given(mask=masks(), batch=st.integers(1, 3), q_len=st.integers(1, 30), kv_len=st.integers(1, 30))
def test_rows_that_see_a_key_are_a_run_too(mask: Mask, batch: int, q_len: int, kv_len: int):
    mask = mask.clipped_to(batch, q_len, kv_len).runs
    problem = Problem(batch=batch, heads=1, q_len=q_len, kv_len=kv_len, mask=mask)
    arrays = runs_of_keys(problem)
    assert set(arrays) == (set() if mask.is_band else {FIRST_ROWS, END_ROWS})
    if mask.is_band:
        return
    first, end = arrays[FIRST_ROWS], arrays[END_ROWS]
    assert first.dtype == end.dtype == np.int32 and first.shape == end.shape == (batch, kv_len)
    assert (np.diff(first) >= 0).all() and (np.diff(end) >= 0).all() and (first <= end).all()
    rows, keys = np.arange(q_len)[:, None], np.arange(kv_len)
    for sequence in range(batch):
        seen = mask.of_sequence(sequence).visible(rows, keys, q_len, kv_len)
        assert np.array_equal(seen, (first[sequence] <= rows) & (rows < end[sequence]))


@given(mask=masks())
def test_a_mask_is_read_as_it_is_written(mask: Mask):
    assert parse_mask(mask.text) == mask and hash(parse_mask(mask.text)) == hash(mask)
    problem = Problem(batch=2, mask=mask.clipped_to(2, 256, 256))
    assert Problem.from_fields(problem.to_fields()) == problem
    assert problem.features == tuple(dict.fromkeys(part.kind for part in mask.parts))
    assert len(mask.shown) <= max(len(mask.text), 60 * len(mask.parts))


@given(mask=masks())
def test_what_is_plainer_is_of_the_same_kind(mask: Mask):
    for part in mask.parts:
        for plainer in part.simplified():
            assert plainer.kind == part.kind and plainer.clipped_to(1, 40, 40).why_invalid(1, 40, 40) is None


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
    assert seen("documents:3+2") == ["xxx..", "...xx", "...xx"]
    assert seen("documents:2+1+1") == ["..x..", "...xx", "...xx"]  # the last one goes on to the last key
    assert seen("causal+documents:3+0+2") == ["xxx..", "...x.", "...xx"]
    assert seen("prefix:4") == ["xxxx.", "xxxx.", "xxxxx"]
    assert seen("prefix:0") == seen("causal")
    assert seen("prefix:4+window:1") == [".xxx.", "..xx.", "...xx"]


def test_rows_ahead_of_all_keys():
    """Four rows and two keys: rows 0 and 1 lie on none. They are of no document, and see a prefix as all rows do."""
    rows, keys = np.arange(4)[:, None], np.arange(2)[None, :]
    documents, prefix = (parse_mask(text).visible(rows, keys, 4, 2) for text in ("documents:1+1", "prefix:1"))
    assert documents.tolist() == [[False, False], [False, False], [True, False], [False, True]]
    assert prefix.tolist() == [[True, False], [True, False], [True, False], [True, True]]


def test_documents_of_each_sequence():
    problem = Problem(batch=2, heads=1, q_len=4, kv_len=4, mask="documents:1+3/2+2+0")  # type: ignore[arg-type]
    assert [part.text for part in map(problem.mask.of_sequence, (0, 1))] == ["documents:1+3", "documents:2+2+0"]
    first, end = problem.spans
    assert first.tolist() == [[0, 1, 1, 1], [0, 0, 2, 2]] and end.tolist() == [[1, 4, 4, 4], [2, 2, 4, 4]]
    assert problem.span(np.arange(2), sequence=1)[1].tolist() == [2, 2]
    assert problem.flops == 4 * 64 * ((1 + 9) + (4 + 4))
    inputs = draw_inputs(problem)
    assert inputs["first_keys"].dtype == np.int32 and inputs["first_keys"].tolist() == first.tolist()
    assert inputs["end_keys"].tolist() == end.tolist()
    assert problem.compulsory_bytes == 4 * 2 * 4 * 64 * 4 + 2 * 2 * 4 * 4


def test_long_lists_are_shown_short_and_kept_whole():
    text = "documents:" + "+".join(str(n) for n in range(100, 130))
    mask = parse_mask(f"causal+{text}")
    assert mask.text == f"causal+{text}" and mask.shown == "causal+documents:100+101+102+103+...+129 (30 documents)"
    problem = Problem(kv_len=4000, q_len=4000, mask=mask)
    assert mask.shown in problem.headline and Problem.from_fields(problem.to_short_fields()) == problem
    assert parse_mask("documents:1+2/3+4").shown == "documents:1+2/3+4"
    assert parse_mask("documents:1+2/3+4/5").shown == "documents:1+2/... (3 sequences)"


def test_bands_are_two_numbers_and_others_are_arrays():
    assert all(parse_mask(text).is_band for text in ("none", "causal", "window:3", "causal+window:3"))
    assert not any(parse_mask(text).is_band for text in ("documents:3", "prefix:3", "causal+documents:3"))
    assert [tensor.name for tensor in Problem(mask=parse_mask("causal")).inputs] == ["Q", "K", "V"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mask": "documents:200+57"}, "have 257 keys together, and kv_len is 256"),
        ({"mask": "documents:1/200+57", "batch": 2}, "documents of sequence 1 in"),
        ({"mask": "documents:1/2"}, "for 2 sequences, and batch is 1: give one list for all"),
        ({"mask": "documents:1/2+causal", "batch": 3}, "give one list for all, or 3"),
    ],
)
def test_documents_that_do_not_fit_are_one_line(fields: dict[str, object], words: str):
    with pytest.raises(ProblemError) as caught:
        Problem(**fields)
    assert words in str(caught.value) and "\n" not in str(caught.value)


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
        ("causal:3", "has no parameters"),
        ("window", "is not window:LEFT[,RIGHT]"),
        ("window:-1", "is not window:LEFT[,RIGHT]"),
        ("window:1,2,3", "is not window:LEFT[,RIGHT]"),
        ("window:9999999999999", "is not window:LEFT[,RIGHT]"),
        ("window:3+5", "is not window:LEFT[,RIGHT]"),
        ("documents", "is not documents:KEYS+KEYS"),
        ("documents:", "is not documents:KEYS+KEYS"),
        ("documents:1+2/", "is not documents:KEYS+KEYS"),
        ("documents:1+-2", "is not documents:KEYS+KEYS"),
        ("documents:1+2+", "there is no ''"),
        ("document:1+2", "did you mean 'documents'"),
        ("prefix", "is not prefix:KEYS"),
        ("prefix:-1", "is not prefix:KEYS"),
        ("prefix:1,2", "is not prefix:KEYS"),
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
    with pytest.raises(ProblemError, match="has -1 keys"):
        Prefix(-1)
    with pytest.raises(ProblemError, match="has -3 keys"):
        Documents(((1, -3),))
    with pytest.raises(ProblemError, match="at least one length"):
        Documents(((1,), ()))


def test_every_kind_has_a_word_a_spelling_and_something_to_draw():
    for word, kind in mask_kinds().items():
        assert kind.kind == word and kind.spelling.startswith(word) and kind.drawn(16)
        assert dataclasses.is_dataclass(kind)
    assert [spelling for spelling, _ in mask_help()] == ["none", *(kind.spelling for kind in mask_kinds().values())]
