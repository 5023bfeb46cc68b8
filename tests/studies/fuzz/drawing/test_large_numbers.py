"""Lengths, columns, page numbers and offsets of more than 16 and 32 bits, which each usual campaign asks for once."""

from __future__ import annotations

import pytest
from asked_cases import SEEDS, cases_of, usual_cases

from harness.operations.attention.cases.axes import MOST_WORK

pytestmark = pytest.mark.compiles(False)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["fa2-cupy", "split-kv-cupy", "bwd-fa2-cupy", "row-wise-cupy"])
def test_one_problem_has_more_keys_than_16_bits_count(name: str, seed: int):
    cases = usual_cases(name, seed)
    places = [number for number, case in enumerate(cases, 1) if case.problem.kv_len > 2**16]
    assert places and places[0] <= 20
    for place in places:
        p = cases[place - 1].problem
        assert p.q_len * p.heads * p.batch == 1 and p.head_dim <= 24
    # Where the last keys matter most, it does not show if others are left out.
    assert {"rising", "normal"} <= {cases[place - 1].regime for place in places}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["fa2-cupy", "split-kv-cupy", "bwd-fa2-cupy", "row-wise-cupy"])
def test_one_problem_has_more_rows_than_16_bits_count(name: str, seed: int):
    long = [case.problem for case in usual_cases(name, seed) if case.problem.q_len > 2**16]
    assert long and all(p.kv_len * p.heads * p.batch == 1 and p.head_dim <= 24 for p in long)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["fa2-cupy", "bwd-fa2-cupy", "row-wise-cupy", "fa2-mma-cupy"])
def test_two_problems_have_offsets_of_more_than_32_bits(name: str, seed: int):
    cases = usual_cases(name, seed)
    far = [(number, case.problem) for number, case in enumerate(cases, 1) if case.problem.far]
    in_layouts = [] if name == "row-wise-cupy" else [29, 30]
    assert [number for number, _ in far] == [25, 26, 27, 28, *in_layouts]
    assert [number for number, p in far if not p.layout.is_dense] == in_layouts
    (_, rows), (_, keys), *_ = far
    assert (rows.build_key, rows.q_len > rows.kv_len) == (cases[0].problem.build_key, True) and keys.kv_len > keys.q_len
    for p in (rows, keys):
        *_, last = p.spread.extent.places
        assert max(last * p.q_len, last * p.kv_len) * p.head_dim >= 2**32 and last < 65_535
        # Scores, in float32, have a range of addresses of the emulator.
        assert (last + 1) * p.q_len * p.kv_len * 4 <= 2**35 or keys is p
        assert p.q_len * p.kv_len * p.head_dim <= 4 * MOST_WORK


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["fa2-cupy", "bwd-fa2-cupy", "row-wise-cupy", "fa2-mma-cupy"])
def test_scratch_memory_of_16_bit_builds_has_offsets_that_become_negative(name: str, seed: int):
    far = [case.problem for case in usual_cases(name, seed) if case.problem.far]
    *_, rows, keys = (problem for problem in far if problem.layout.is_dense)
    for p, length in ((rows, rows.q_len), (keys, keys.kv_len)):
        *_, last = p.spread.extent.places
        assert p.dtype != "float32" and length == max(p.q_len, p.kv_len)
        # Rows are padded to whole tiles of 128, as a running dQ may be.
        for padded in (length, -(-length // 128) * 128):
            assert 2**31 <= last * padded * p.head_dim < 2**32


@pytest.mark.parametrize("name", ["paged-cupy", "paged-split-kv-cupy"])
def test_one_table_has_pages_whose_offsets_have_more_than_32_bits(name: str):
    dense, *strided = (case.problem for case in usual_cases(name, 0) if case.problem.far)
    assert dense.layout.is_dense and [p.layout.text for p in strided] == ["kv-nhdx3", "hndx3/hndx2"]
    for problem in (dense, *strided):
        for pool in (problem.spread.problem.tensor("K"), problem.spread.problem.tensor("V")):
            assert (pool.shape[0] - 1) * pool.strides[0] >= 2**32 > 2**31 > pool.shape[0]


def test_no_offset_has_more_than_32_bits_where_few_tiles_are_asked_for(monkeypatch: pytest.MonkeyPatch):
    cases, _ = cases_of("fa2-cupy", 0, monkeypatch, examples=40, most_tiles=2)
    assert not any(case.problem.far for case in cases)


def test_one_row_of_softmax_has_more_columns_than_16_bits_count(monkeypatch: pytest.MonkeyPatch):
    for seed in range(3):
        cases, _ = cases_of("softmax-online-cupy", seed, monkeypatch, examples=20)
        assert any(case.problem.columns > 2**16 and case.regime == "rising" for case in cases)


@pytest.mark.parametrize("name", ["paged-cupy", "paged-split-kv-cupy"])
def test_one_table_has_pages_whose_numbers_have_more_than_16_bits(name: str):
    for seed in range(3):
        cases = usual_cases(name, seed)
        (case,) = (case for case in cases[:20] if case.problem.pool_pages > 2**16)
        assert max(case.problem.lengths) > 32 * 512 and case.problem.heads == case.problem.q_len == 1
        table = case.inputs()["table"]
        assert ((2**16 <= table) & (table < case.problem.pool_pages)).any()
        assert any(case.problem.page_size > 64 for case in cases[:40])
