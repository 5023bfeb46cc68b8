"""Variants of the operations besides attention run natively, and are right."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.outcome import Row
from harness.gpu.executor import GpuExecutor
from harness.model.discovery import discover
from harness.model.operation import draw_inputs, operation_named

pytestmark = pytest.mark.skipif(not GpuExecutor.available(), reason="CuPy finds no GPU on this machine")

PROBLEMS: dict[str, dict[str, dict[str, Any]]] = {
    "attention-backward": {
        "plain": {},
        "primes": {"q_len": 131, "kv_len": 257, "head_dim": 37},
        "causal": {"causal": True, "q_len": 200, "kv_len": 200, "head_dim": 128},
        "grouped heads": {"batch": 2, "heads": 6, "kv_heads": 3, "q_len": 97, "kv_len": 64},
    },
    "kv-append": {
        "plain": {},
        "ragged": {"lengths": [0, 17, 300, 4096], "new_lengths": [0, 17, 1, 700], "kv_heads": 3, "head_dim": 33},
    },
    "mla-decode": {
        "plain": {},
        "ragged": {"lengths": [0, 17, 300, 1100], "heads": 40, "q_len": 3, "page_size": 48},
    },
    "paged-attention": {
        "plain": {},
        "ragged": {"lengths": [0, 17, 300, 4096], "heads": 8, "kv_heads": 2, "head_dim": 128},
        "8 bits": {"lengths": [0, 17, 300, 4096], "q_len": 3, "head_dim": 128, "kv_dtype": "e4m3", "window": 1000},
    },
    "softmax": {
        "plain": {},
        "a warp": {"rows": 37, "columns": 257},
        "a block": {"rows": 5, "columns": 4096},
        "a cluster": {"rows": 3, "columns": 40000},
    },
}
ASKED = [
    (variant.name, operation, shape, dtype)
    for operation, shapes in PROBLEMS.items()
    for variant in discover().registry.select(None, operation)
    for shape in shapes
    for dtype in ("float32", "float16", "bfloat16")
    if dtype != "float32" or "kv_dtype" not in shapes[shape]
]


@functools.cache
def question(operation: str, shape: str, dtype: str) -> Question:
    """The oracle's answer, kept: every variant is asked the same."""
    problem = operation_named(operation).problem.from_fields({"dtype": dtype, **PROBLEMS[operation][shape]})
    return Question.pose(problem, draw_inputs(problem, "normal", seed=2))


@pytest.fixture(scope="module")
def executor() -> GpuExecutor:
    return GpuExecutor()


@pytest.mark.parametrize(("name", "operation", "shape", "dtype"), ASKED)
def test_every_variant_is_right_natively(executor: GpuExecutor, name: str, operation: str, shape: str, dtype: str):
    asked = question(operation, shape, dtype)
    row = Row.of(attempt(discover().registry.get(name), asked.problem, executor, question=asked))
    if row.verdict == "unsupported":
        pytest.skip(row.reason)
    assert row.verdict == "pass", row.reason
