"""Large inputs on the GPU: kernels that draw them to the bits of the host, on the emulator."""

from __future__ import annotations

import cupy
import numpy as np
import pytest
from emulators import emulator

from harness.gpu.stage import counting_changes, drawing
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.drawn_tensor import DrawnTensor
from harness.model.operation import draw_inputs
from harness.model.plan import Buffer, Launch, Plan
from harness.operations.attention.problem import Problem

EXECUTOR = emulator()
SEED = 2**62 + 12345


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_a_gpu_draws_the_same_bits(dtype: str):
    problem = Problem(heads=3, q_len=13, kv_len=1, head_dim=21, dtype=dtype)
    tensor = DrawnTensor(problem.q_shape, NUMPY_DTYPES[dtype], SEED, 1)
    drawn = EXECUTOR.run(problem, Plan((drawing(tensor, "O"),)), draw_inputs(problem)).outputs["O"]
    assert np.array_equal(drawn.view(np.uint8), np.asarray(tensor).view(np.uint8))


CLEAR = cupy.RawKernel('extern "C" __global__ void clear(int *x) { x[threadIdx.x] = 0; }', "clear")


@pytest.mark.parametrize(("dtype", "changes"), [("bfloat16", [0, 300, 818]), ("float32", [])])
def test_it_counts_what_was_changed(dtype: str, changes: list[int]):
    problem = Problem(heads=3, q_len=13, kv_len=1, head_dim=21, dtype=dtype)
    tensor = DrawnTensor(problem.q_shape, NUMPY_DTYPES[dtype], SEED, 0)
    inputs = draw_inputs(problem) | {"Q": np.asarray(tensor)}
    inputs["Q"].reshape(-1)[changes] += 1
    clear = Launch(CLEAR, (1,), (problem.q_len,), ("lse",))
    plan = Plan((clear, counting_changes(tensor, "Q", "lse")), (Buffer("lse", problem.lse_shape, "float32"),))
    count = EXECUTOR.run(problem, plan, inputs).outputs["lse"].view(np.int32)[0, 0]
    assert count.tolist() == [len(changes), *(0,) * (problem.q_len - 1)]
