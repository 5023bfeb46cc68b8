"""A paged problem: its fields, its tensors, what it costs at least, and what makes no sense."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from harness.model.cases.case import Case, Edit
from harness.model.operation import WHOLE, operation_named
from harness.operations.paged_attention.operation import choose_parts, common_prefix, problem_of_arrays
from harness.operations.paged_attention.problem import PagedProblem
from harness.operations.paged_attention.sequences import parse_lengths
from harness.support.errors import ProblemError, UsageError

OPERATION = operation_named("paged-attention")
SHARING = PagedProblem(lengths=(0, 5, 64, 300), heads=4, q_len=3, page_size=32, prefix=70, dtype="float32")


def test_tensors():
    shapes = {tensor.name: (tensor.shape, tensor.dtype) for tensor in SHARING.tensors}
    # 64 keys have two pages and share both; 300 have ten and share the same two: 2 + 8, and one of 5 keys.
    assert SHARING.pages_in_use == 11
    assert shapes == {
        "Q": ((4, 4, 3, 64), "float32"),
        "K": ((13, 2, 32, 64), "float32"),
        "V": ((13, 2, 32, 64), "float32"),
        "table": ((4, 10), "int32"),
        "lengths": ((4,), "int32"),
        "O": ((4, 4, 3, 64), "float32"),
        "lse": ((4, 4, 3), "float32"),
    }


@pytest.mark.parametrize(
    ("table", "lengths", "pages"),
    [
        ([[3, 7, 1], [3, 7, 1]], [96, 96], 3),
        ([[3, 7, 1], [3, 7, 1]], [96, 95], 2),  # not all of the third
        ([[3, 7, 1], [3, 7, 2]], [96, 96], 2),
        ([[3, 7, 1], [4, 7, 1]], [96, 96], 0),
        ([[3, 0, 0], [3, 7, 1], [3, 7, 2]], [40, 96, 96], 2),  # the first has one whole page
        ([[9, 9, 9], [3, 7, 1], [3, 7, 2]], [0, 96, 96], 2),
        ([[3, 7, 1]], [96], 0),
        ([[0], [0]], [0, 0], 0),
    ],
)
def test_the_prefix_of_a_given_table(table: list[list[int]], lengths: list[int], pages: int):
    assert common_prefix(np.array(table, np.int32), np.array(lengths, np.int32), 32) == 32 * pages


def test_what_is_shared_is_compulsory_once():
    q_bytes, row_bytes = 4 * 4 * 3 * 64 * 4, 2 * 64 * 4
    keys = 5 + 64 + (300 - 64)
    assert SHARING.keys_in_use == keys
    entries = 1 + 2 + 10
    assert SHARING.compulsory_read_bytes == q_bytes + 2 * keys * row_bytes + 4 * (entries + 4)
    apart = PagedProblem(**{**SHARING.to_fields(), "prefix": 0, "pages": None})
    assert apart.compulsory_read_bytes - SHARING.compulsory_read_bytes == 2 * 64 * row_bytes
    assert SHARING.compulsory_write_bytes == q_bytes


def test_keys_and_values_in_8_bits_are_half_the_bytes_and_have_scales():
    wide = SHARING.with_fields(dtype="bfloat16")
    narrow = wide.with_fields(kv_dtype="e4m3")
    dtypes = {tensor.name: tensor.dtype for tensor in narrow.inputs}
    assert dtypes["Q"] == "bfloat16" and dtypes["K"] == dtypes["V"] == "float8_e4m3fn"
    assert narrow.tensor("K_scale").shape == narrow.tensor("V_scale").shape == (2,)
    saved = wide.compulsory_read_bytes - narrow.compulsory_read_bytes
    assert saved == 2 * SHARING.keys_in_use * 2 * 64 - 2 * 2 * 4
    assert narrow.build_key != wide.build_key and "bfloat16 with K and V in e4m3," in narrow.headline


@pytest.mark.parametrize("window", [None, 0, 5])
@pytest.mark.parametrize(("lengths", "q_len"), [((7,), 1), ((0, 2, 3, 9), 4), ((1, 40), 17)])
def test_flops_are_those_of_the_pairs_that_are_seen(lengths: tuple[int, ...], q_len: int, window: int | None):
    problem = PagedProblem(lengths=lengths, q_len=q_len, heads=2, kv_heads=1, head_dim=8, window=window)
    pairs = sum(
        i + length - q_len - (length if window is None else window) <= j <= i + length - q_len
        for length in lengths
        for i, j in itertools.product(range(q_len), range(length))
    )
    assert problem.flops == 4 * 8 * 2 * pairs


def test_one_length_stands_for_all_and_lists_are_read():
    assert PagedProblem(lengths=(40,), batch=3) == PagedProblem(lengths=(40, 40, 40))
    assert parse_lengths("17+300+0") == (17, 300, 0)
    assert PagedProblem(lengths="17+300").lengths == PagedProblem(lengths=[17, 300]).lengths == (17, 300)


@pytest.mark.parametrize(
    "problem",
    [
        SHARING,
        PagedProblem(),
        PagedProblem(lengths=(9,), pages=40, table_len=5, scale=2),
        SHARING.with_fields(window=40, softcap=30.0, alibi=True, sinks=True),
        SHARING.with_fields(dtype="bfloat16", kv_dtype="e4m3"),
        SHARING.with_fields(q_lengths=tuple(range(SHARING.sequences))),
        PagedProblem(q_lengths=(2,), window=5),
    ],
)
def test_fields_make_the_same_problem_again(problem: PagedProblem):
    assert PagedProblem.from_fields(problem.to_short_fields()) == problem
    assert PagedProblem.from_fields(problem.to_fields()) == problem
    case = Case(problem, "hot", 3, (Edit("V", (0, 1, 2, 3), 1.0),))
    assert Case.from_json(case.to_json()) == case


def test_headlines_are_short():
    assert PagedProblem(lengths=(5, 6), heads=2, q_len=2, prefix=9).headline == (
        "paged attention, 2 sequences of 5+6 keys, 2 of 3 pages of 16, 2 heads, 2 rows, head_dim 64, float16, "
        "scale 0.125"
    )
    many = PagedProblem(lengths=tuple(range(40)), heads=8)
    assert "40 sequences of 0 to 39 keys, 780 in all, " in many.headline
    assert "2 sequences of 1 key each" in PagedProblem(lengths=(1, 1)).headline
    assert "1 sequence of 7 keys, " in PagedProblem(lengths=(7,)).headline
    packed = PagedProblem(lengths=(5, 6, 9), q_lengths=(5, 0, 1))
    assert ", 5+0+1 rows, " in packed.headline and packed.q_len == 5 and packed.flops == 4 * 8 * 64 * (15 + 9)
    assert ", 0 to 7 rows, 28 in all, " in PagedProblem(lengths=(9,) * 8, q_lengths=tuple(range(8))).headline
    assert ", the first 40 shared, " in PagedProblem(lengths=(50, 60), prefix=40).headline


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"lengths": ()}, "name at least one, such as 17"),
        ({"lengths": (3, -1)}, "lengths has -1; each has to be a whole number from 0"),
        ({"lengths": (3, True)}, "lengths has True"),
        ({"lengths": (3, 4), "batch": 3}, "batch is 3, and lengths has 2; leave out batch"),
        ({"heads": 3}, r"heads \(3\) is not a multiple of kv_heads \(2\)"),
        ({"q_lengths": (1, 2)}, r"q_lengths is \(1, 2\); name the rows of 3 sequences, such as 1\+0\+300"),
        ({"q_lengths": (1, -1, 2)}, "q_lengths has -1; each has to be a whole number from 0"),
        ({"q_lengths": (0,)}, "q_lengths has 0 rows in all; they have to be from 1"),
        ({"q_lengths": (1, 0, 4), "q_len": 2}, "q_len is 2, and q_lengths has up to 4 rows; leave out q_len"),
        ({"page_size": 24}, "page_size is 24; it has to be a multiple of 16 from 16 to 256"),
        ({"page_size": 272}, "page_size is 272"),
        ({"lengths": (33,), "pages": 2}, "pages is 2; the sequences are in 3 pages of 16"),
        ({"lengths": (33,), "table_len": 2}, "table_len is 2; the longest sequence has 3 pages of 16"),
        ({"prefix": -1}, "prefix is -1"),
        ({"window": -3}, "window is -3; it has to be a whole number of at least 0"),
        ({"softcap": 0}, "softcap is 0; it has to be a positive number"),
        ({"dtype": "int8"}, "choose one of float16, bfloat16, float32"),
        ({"scale": float("nan")}, "scale is nan"),
        ({"kv_dtype": "int8"}, "kv_dtype is 'int8'; choose e4m3, or leave it out for the dtype of Q"),
        ({"kv_dtype": "e4m3", "dtype": "float32"}, "kv_dtype is e4m3, which goes with dtype float16 or bfloat16"),
        ({"kv_dtype": "e4m3", "head_dim": 36}, "head_dim is 36; with kv_dtype e4m3 it has to be a multiple of 8"),
    ],
)
def test_what_makes_no_sense_is_said(fields: dict[str, object], reason: str):
    with pytest.raises(ProblemError, match=reason):
        PagedProblem(**fields)


def test_kernels_of_a_size_of_pages_are_their_own():
    keys = {PagedProblem(page_size=size, lengths=lengths).build_key for size in (16, 32) for lengths in ((1,), (9, 9))}
    assert len(keys) == 2


def test_large_problems_check_the_shortest_and_longest_sequences():
    problem = PagedProblem(lengths=(70, 0, 9000, 300), heads=6, q_len=40)
    assert choose_parts(problem, problem.flops) == (WHOLE,)
    parts = OPERATION.parts(problem, 0.9 * problem.flops)
    assert {part.where[0].start for part in parts} == {0, 1, 2, 3}
    assert {part.where[1].start for part in parts} >= {0, 5}
    assert all(part.where[2] == slice(8, 40) for part in parts)


def test_of_long_sequences_few_are_worked_out():
    problem = PagedProblem(lengths=(131072,), batch=8, heads=32, kv_heads=8, head_dim=128, page_size=16)
    parts = OPERATION.parts(problem, 4e9)
    assert [part.where[0].start for part in parts] == [0, 3, 7]


def test_short_and_long_sequences_are_tuned_apart():
    sizes = [PagedProblem(lengths=lengths).size_class for lengths in ((40, 40), (41, 39), (4000, 40), (40, 40, 40, 40))]
    assert sizes[0] == sizes[1] and len(set(sizes)) == 3


def test_entries_before_a_window_need_not_name_a_page():
    pool, table = np.zeros((4, 1, 16, 8), np.float16), np.array([[-1, -1, 3], [0, -1, -1]], np.int32)
    arrays = {
        "Q": np.zeros((2, 2, 1, 8), np.float16), "K": pool, "V": pool, "table": table,
        "lengths": np.array([40, 9], np.int32),
    }  # fmt: skip
    problem = problem_of_arrays(arrays, "float16", {"window": 7})
    # Keys 32 to 39, and 1 to 8.
    assert problem.in_use == (2, 8 + 8) and problem.entries_in_use == 2
    with pytest.raises(UsageError, match="sequence 0 has page -1 at position 1 of the table; the pool has 4, 0 to 3"):
        problem_of_arrays(arrays, "float16", {"window": 8})
