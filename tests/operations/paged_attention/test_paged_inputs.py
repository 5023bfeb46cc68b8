"""How pools and tables are drawn: scattered, with holes, shared where it was asked for, and poison elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from harness.model.operation import draw_inputs, operation_named
from harness.operations.attention.inputs import REGIMES as OF_ATTENTION
from harness.operations.paged_attention.inputs import NO_PAGE
from harness.operations.paged_attention.problem import PagedProblem

PROBLEM = PagedProblem(
    lengths=(48, 0, 100, 33, 90), heads=2, kv_heads=2, head_dim=4, pages=40, table_len=9, prefix=35, dtype="float32"
)


def entries(problem: PagedProblem, table: np.ndarray) -> list[list[int]]:
    return [row[:pages].tolist() for row, pages in zip(table, problem.sequence_pages)]


def test_each_page_is_somebodys_once_but_for_the_prefix():
    inputs = draw_inputs(PROBLEM, "normal", 1)
    rows = entries(PROBLEM, inputs["table"])
    shared = [row[:2] for row in rows if row]
    assert all(each == shared[0] for each in shared)
    own = [page for row in rows for page in row[2:]] + shared[0]
    assert len(set(own)) == len(own) == PROBLEM.pages_in_use
    assert rows[2] != sorted(rows[2]) and max(own) < 40  # scattered over the pool
    assert (inputs["table"][1] == NO_PAGE).all() and (inputs["table"][0, 3:] == NO_PAGE).all()
    assert inputs["lengths"].tolist() == [48, 0, 100, 33, 90]
    assert {inputs[name].dtype for name in ("table", "lengths")} == {np.dtype(np.int32)}


def test_what_no_sequence_has_is_nan_and_nothing_else_is():
    inputs = draw_inputs(PROBLEM, "normal", 1)
    used = np.zeros((40, 16), np.bool_)
    for row, length in zip(entries(PROBLEM, inputs["table"]), PROBLEM.lengths):
        for place, page in enumerate(row):
            used[page, : length - 16 * place] = True
    assert used.sum() == PROBLEM.keys_in_use
    for name in "KV":
        np.testing.assert_array_equal(
            np.isnan(inputs[name]), np.broadcast_to(~used[:, None, :, None], inputs[name].shape)
        )


def test_regimes_are_attentions_and_another_seed_gives_another_table():
    assert list(operation_named("paged-attention").regimes) == list(OF_ATTENTION)
    one, same, other = (draw_inputs(PROBLEM, "normal", seed)["table"] for seed in (1, 1, 2))
    assert (one == same).all() and (one != other).any()


@pytest.mark.parametrize("regime", ["normal", "hot", "needle"])
def test_the_dtype_changes_nothing_but_rounding(regime: str):
    wide, half = (
        draw_inputs(PagedProblem(**{**PROBLEM.to_fields(), "dtype": dtype}), regime, 4)
        for dtype in ("float32", "float16")
    )
    np.testing.assert_array_equal(wide["table"], half["table"])
    for name in "QKV":
        np.testing.assert_allclose(half[name].astype(np.float32), wide[name], rtol=1e-3, atol=1e-6)


def test_of_several_rows_the_last_alone_sees_a_key_that_is_nan():
    problem = PagedProblem(lengths=(40, 7), q_len=3, heads=2, kv_heads=2, head_dim=4, dtype="float32")
    inputs = draw_inputs(problem, "non-finite", 1)
    answer = operation_named("paged-attention").answer(problem, inputs)
    assert np.isnan(answer["lse"][:, :, 2]).all() and np.isfinite(answer["lse"][:, :, :2]).all()
