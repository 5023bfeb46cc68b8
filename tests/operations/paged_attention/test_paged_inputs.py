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


WINDOWED = PROBLEM.with_fields(window=20, q_len=3)
PACKED = PROBLEM.with_fields(window=20, q_lengths=(0, 3, 50, 1, 0), prefix=0)


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


def test_pages_before_every_window_have_no_entry_and_no_page():
    table = draw_inputs(WINDOWED, "normal", 1)["table"]
    # Row 0 lies on key length - 3 and sees 20 keys before it: from 25, none, 77, 10 and 67 on.
    assert [(row < 0).sum() for row in table] == [9 - 2, 9, 9 - 3, 9 - 3, 9 - 2]
    assert [row.argmax() >= first for row, first in zip(table, (1, 0, 4, 0, 4))] == [True] * 5
    assert (table[0, :1] == NO_PAGE).all() and (table[2, :4] == NO_PAGE).all() and (table[4, :4] == NO_PAGE).all()
    # Of the two common pages, two sequences have the second, and one the first.
    assert table[0, 1] == table[3, 1] and len(set(table[table >= 0].tolist())) == WINDOWED.pages_in_use == 9


@pytest.mark.parametrize("problem", [PROBLEM, WINDOWED, PACKED], ids=["all keys", "window", "packed"])
def test_what_no_row_sees_is_nan_and_nothing_else_is(problem: PagedProblem):
    inputs = draw_inputs(problem, "normal", 1)
    used = np.zeros((40, 16), np.bool_)
    for row, length, rows in zip(entries(problem, inputs["table"]), problem.lengths, problem.rows):
        for place, page in enumerate(row if rows else ()):
            first, end = problem.first_seen(length, rows) - 16 * place, length - 16 * place
            used[page, max(first, 0) : max(end, 0)] |= page >= 0
    assert used.sum() == problem.keys_in_use
    for name in "KV":
        np.testing.assert_array_equal(
            np.isnan(inputs[name]), np.broadcast_to(~used[:, None, :, None], inputs[name].shape)
        )


def test_packed_rows_lie_token_by_token_and_pages_are_evicted_by_each_sequences_rows():
    inputs = draw_inputs(PACKED, "normal", 1)
    assert inputs["cu_seqlens_q"].tolist() == [0, 0, 3, 53, 54, 54] and inputs["Q"].shape == (1, 2, 54, 4)
    assert PACKED.tensor("Q").strides == PACKED.tensor("O").strides == (54 * 8, 4, 8, 1)
    # Keys from 48 - 0 - 20, 100 - 50 - 20 and 33 - 1 - 20 on; a sequence without rows has its pages, for a later row.
    assert PACKED.evicted_pages == (1, 0, 1, 0, 4) and PACKED.keys_in_use == 100 - 30 + 33 - 12


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


def test_keys_and_values_in_8_bits_use_the_whole_format_with_scales_that_differ():
    problem = PagedProblem(lengths=(500, 40), heads=5, kv_heads=5, head_dim=64, kv_dtype="e4m3")
    inputs = draw_inputs(problem, "normal", 1)
    wide = draw_inputs(problem.with_fields(kv_dtype=None), "normal", 1)
    for name in "KV":
        stored, scales = inputs[name].astype(np.float64), inputs[f"{name}_scale"].astype(np.float64)
        np.testing.assert_array_equal(np.isnan(stored), np.isnan(wide[name]))
        largest, smallest = np.nanmax(np.abs(stored)), np.nanmin(np.abs(stored[stored != 0]))
        assert largest == 448 and smallest == 2.0**-9
        assert scales.max() > 1000 * scales.min()
        unit = scales[:, None, None]
        close = np.abs(stored * unit - wide[name]) <= np.abs(wide[name]) / 16 + unit * 2.0**-10
        cut_off = np.abs(stored) == 448
        assert (close | cut_off | np.isnan(stored)).all() and 0 < cut_off.mean() < 0.1


def test_scales_of_subnormal_values_are_normal_so_that_flushing_them_loses_nothing():
    problem = PagedProblem(lengths=(500, 40), heads=5, kv_heads=5, head_dim=64, dtype="bfloat16", kv_dtype="e4m3")
    inputs = draw_inputs(problem, "subnormal", 1)
    assert inputs["V_scale"].min() == np.finfo(np.float32).tiny and inputs["V"].astype(np.float32).any()
