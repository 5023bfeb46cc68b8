from __future__ import annotations

import pytest

from harness.operations.attention.needed_bytes import io_bound
from harness.operations.attention.problem import Problem


def test_large_memory_is_flash_attentions_order():
    # M = 4096 = d^2: both terms are N^2 d^2 / M = N^2 elements.
    problem = Problem(batch=2, heads=3, q_len=1000, kv_len=500, head_dim=64)
    found = io_bound(problem, 4 * 4096)
    assert found.on_chip_elements == 4096
    assert found.expression_bytes == pytest.approx(2 * 3 * 1000 * 500 * 4)
    assert found.large_memory
    assert found.applies
    # Four times the memory, a quarter of the bytes.
    assert io_bound(problem, 16 * 4096).expression_bytes == pytest.approx(found.expression_bytes / 4)


def test_small_memory_is_matrix_multiplications_order():
    # M = d^2 / 4: N^2 d / sqrt(M) = 2 N^2 is less than N^2 d^2 / M = 4 N^2.
    found = io_bound(Problem(heads=1, q_len=100, kv_len=100, head_dim=64), 4 * 1024)
    assert found.expression_bytes == pytest.approx(2 * 100 * 100 * 4)
    assert not found.large_memory


def test_where_a_head_fits_on_chip_it_says_nothing():
    assert not io_bound(Problem(q_len=64, kv_len=64, head_dim=64), 4 * 64 * 64).applies
    assert io_bound(Problem(q_len=64, kv_len=65, head_dim=64), 4 * 64 * 64).applies


def test_elements_are_the_problems_own():
    assert io_bound(Problem(dtype="float16"), 1024).on_chip_elements == 512
