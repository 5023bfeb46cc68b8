"""Small problems whose entries lie far apart in huge ones, and which blocks these have."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from harness.execution.planning.variant_calls import sampled
from harness.model.plan import BlockSample, Buffer, Launch, Plan
from harness.model.spread import elements_apart
from harness.operations.attention.problem import Problem
from harness.operations.attention_backward.problem import BackwardProblem
from harness.operations.paged_attention.problem import PagedProblem
from harness.support.errors import ProblemError

STRIDES = "strides:Q=32768/16384/64/1,K=32768/16384/64/1,V=32768/16384/64/1,O=32768/16384/64/1"
PROBLEM = Problem(batch=3, heads=2, q_len=5, kv_len=7, head_dim=4, far=1000)


def kernel() -> object:
    """Plans need no kernel that runs."""


def plan_of(grid, problem, *args, buffers=()):
    return Plan((Launch(kernel, grid, (32,), args or ("Q", "K", "V", "O")),), buffers)


def sampled_by(grid, *args, buffers=lambda problem: ()):
    """The plan of a variant whose grid and buffers are functions of the problem."""
    spread = PROBLEM.spread
    made = [plan_of(grid(p), p, *args, buffers=buffers(p)) for p in (spread.problem, spread.fewer)]
    return sampled(*made, spread)


def test_the_last_sequence_begins_so_many_elements_after_the_first():
    spread = PROBLEM.spread
    each = 2 * 7 * 4  # of K, the larger one
    assert spread.extent.places == (0, 9, 18) and (18 - 1) * each < 1000 <= 18 * each
    assert spread.problem == dataclasses.replace(PROBLEM, batch=19, far=0)
    assert dataclasses.replace(PROBLEM, batch=1).spread.extent.places == (18,)
    assert [tensor.shape[0] for tensor in spread.problem.tensors] == [19] * 5
    assert [tensor.shape[0] for tensor in PROBLEM.tensors] == [3] * 5


@pytest.mark.parametrize(("layout", "each"), [("bshd", 2 * 7 * 4), ("bshd+3", 2 * 7 * 7), ("qkv", 3 * 2 * 5 * 4)])
def test_in_a_layout_the_last_sequence_of_a_buffer_lies_as_far(layout, each):
    kv_len = 5 if layout == "qkv" else 7
    problem = dataclasses.replace(PROBLEM, kv_len=kv_len, layout=layout)
    huge, last = problem.spread.problem, problem.spread.extent.places[-1]
    assert (last - 1) * each < 1000 <= last * each
    assert {t.name: t.strides for t in problem.tensors} == {t.name: t.strides for t in huge.tensors}
    assert huge.tensor("K").placement.elements == each * (last + 1)


@pytest.mark.parametrize("problem", [PROBLEM, PagedProblem(far=10**6), BackwardProblem(far=10**6)])
def test_a_problem_far_apart_survives_as_fields(problem):
    assert type(problem).from_fields(problem.to_fields()) == problem
    assert type(problem).from_fields(problem.to_short_fields()) == problem
    assert problem.spread is not None and "elements apart" in problem.headline


def test_a_problem_side_by_side_has_no_such_field():
    plain = dataclasses.replace(PROBLEM, far=0)
    assert plain.spread is None and plain.of_kernels is plain and "far" not in plain.to_fields()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"far": -1}, "far is -1; it has to be a number of elements from 0 to 2\\^36"),
        ({"far": 2**40}, "from 0 to 2\\^36"),
        ({"far": 10, "dropout": 0.5}, "far cannot be combined with dropout"),
        ({"far": 10, "layout": STRIDES}, "^far cannot be combined with strides, [^\n]*; leave out one of them$"),
    ],
)
def test_what_cannot_lie_far_apart(fields, why):
    with pytest.raises(ProblemError, match=why):
        Problem(**fields)


@pytest.mark.parametrize(("text", "elements"), [("2^31", 2**31), ("4294967296", 2**32), ("0", 0)])
def test_distances_are_numbers_or_powers_of_two(text, elements):
    assert elements_apart(text) == elements


@pytest.mark.parametrize("text", ["3^4", "2^", "^3", "far", "1e9", "-2^31"])
def test_other_texts_are_no_distances(text):
    with pytest.raises(ValueError, match="is not a whole number, such as 4294967296 or 2\\^32"):
        elements_apart(text)


def test_arrays_go_to_their_places_and_come_back():
    spread, (Q, *_) = PROBLEM.spread, PROBLEM.tensors
    values = np.arange(3 * 2 * 5 * 4, dtype=np.float32).reshape(Q.shape)
    huge = np.full((19, 2, 5, 4), np.nan, np.float32)
    spread.scatter(Q, values, huge)
    assert (huge[[0, 9, 18]] == values).all() and np.isnan(np.delete(huge, [0, 9, 18], axis=0)).all()
    assert (spread.gather(Q, huge) == values).all()


def test_spans_of_rows_also_lie_at_the_first_sequence():
    problem = Problem(batch=1, heads=1, q_len=4, kv_len=4, head_dim=8, mask="documents:1+3", far=1000)
    spans = next(tensor for tensor in problem.tensors if tensor.name == "first_keys")
    huge = np.full((problem.spread.extent.entries, 4), -1, np.int32)
    problem.spread.scatter(spans, np.array([[5, 6, 7, 8]], np.int32), huge)
    assert huge[0].tolist() == huge[-1].tolist() == [5, 6, 7, 8] and (huge[1:-1] == -1).all()


def test_a_page_table_names_the_pages_of_the_huge_pool():
    problem = PagedProblem(lengths=(20, 3), heads=2, kv_heads=1, head_dim=8, pages=4, far=1000)
    places = problem.spread.extent.places
    table = np.array([[3, 0], [2, 2**31 - 1]], np.int32)
    changed = problem.spread.relabelled({"table": table, "Q": table})
    assert changed["table"].tolist() == [[places[3], 0], [places[2], 2**31 - 1]] and changed["Q"] is table
    assert places[-1] * 16 * 8 >= 1000 > (places[-1] - 1) * 16 * 8


@pytest.mark.parametrize(
    ("grid", "sample"),
    [
        (lambda p: (4, p.heads, p.batch), BlockSample(2, 1, (0, 9, 18))),
        (lambda p: (4, p.heads * p.batch), BlockSample(1, 2, (0, 9, 18))),
        (lambda p: (p.batch * 10,), BlockSample(0, 10, (0, 9, 18))),
    ],
)
def test_blocks_are_chosen_along_the_axis_that_grows_with_the_batch(grid, sample):
    plan = sampled_by(grid)
    assert plan.unsampled is None and plan.launches[0].sample == sample


def test_a_sample_names_the_blocks_of_its_entries():
    assert BlockSample(2, 1, (0, 2)).numbers((2, 2, 3)).tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    assert BlockSample(1, 2, (1,)).numbers((2, 4, 1)).tolist() == [4, 5, 6, 7]
    assert BlockSample(0, 3, (0, 2)).numbers((9, 1, 1)).tolist() == [0, 1, 2, 6, 7, 8]


@pytest.mark.parametrize(
    ("grid", "why"),
    [
        (lambda p: (132,), "kernel kernel has a grid of 132 x 1 x 1 blocks for any number of sequences"),
        (lambda p: (p.batch + 5,), "a grid of 24 x 1 x 1 blocks, which is not in proportion to the 19 sequences"),
        (lambda p: (p.batch, p.batch), "which is not in proportion"),
    ],
)
def test_grids_that_say_nothing_of_sequences_are_not_sampled(grid, why):
    assert why in sampled_by(grid).unsampled


def test_a_launch_that_works_on_no_sequence_runs_as_a_whole():
    """Such as one that lists the tiles that all sequences visit."""
    lists = sampled_by(lambda p: (7,), "tiles", buffers=lambda p: (Buffer("tiles", (7,), "float32"),))
    assert lists.unsampled is None and lists.launches[0].sample is None
    rows = sampled_by(lambda p: (7,), "rows", buffers=lambda p: (Buffer("rows", (p.batch,), "float32"),))
    assert "any number of sequences" in rows.unsampled
