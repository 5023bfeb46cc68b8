from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from harness.operations.attention.problem import Problem
from harness.support.gpu_data_sheets import GPUS, attainable_flops


def test_two_matrix_products():
    assert Problem(batch=2, heads=3, q_len=5, kv_len=7, head_dim=11).flops == 4 * 2 * 3 * 5 * 7 * 11


@pytest.mark.parametrize(("q_len", "kv_len"), [(5, 5), (5, 9), (9, 5), (1, 8)])
def test_masked_keys_are_not_counted(q_len: int, kv_len: int):
    visible = np.tril(np.ones((q_len, kv_len)), kv_len - q_len).sum()
    assert Problem(heads=1, q_len=q_len, kv_len=kv_len, head_dim=2, mask="causal").flops == 8 * visible


def test_the_roof():
    gpu = dataclasses.replace(GPUS["h200"], memory_bytes_per_s=10.0, float32_flops=100.0)
    assert attainable_flops(gpu, 100.0, 2.0) == 20.0
    assert attainable_flops(gpu, 100.0, 10.0) == 100.0
    assert attainable_flops(gpu, 100.0, 1000.0) == 100.0
