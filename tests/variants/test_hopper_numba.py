"""Hopper from Numba: the functions that are one instruction each, tensor maps that are addresses, and the kernel that
is built of them, beside its CUDA twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_kernel import run
from emulators import emulator
from lanes import exhaustive_unless
from numba import cuda, int32, uint32
from numba_boxes import PROBLEM, moved, whole

from harness.cli import main
from harness.compilers.numba.function_identity import function_identity
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.plan import Launch, Plan
from harness.operations.attention.problem import Problem
from harness.support.errors import KernelFault
from variants._hopper.numba_hopper import any_of_threads
from variants._hopper.numba_limits import warpgroup_band
from variants._mma.numba_mma import thread_index
from variants._mma.numba_module_variable import atomic_increment, module_variable
from variants.attention.fa3.numba_kernel import fa3_kernel
from variants.attention.fa3.tile import default_tile

TERMS = {"softcap": 3.0, "alibi": True, "sinks": True}
SEQUENCES = "varlen:1+70+0+129+50/65+100+7+128+0"
VARIANTS = {variant.name: variant for variant in discover().registry}


def test_a_tensor_map_is_the_address_of_one():
    inputs, plan = draw_inputs(PROBLEM, "normal", 1), moved(whole("Q"), whole("O", 2))
    for _ in range(2):
        execution = emulator().run(PROBLEM, plan, inputs)
        np.testing.assert_array_equal(execution.outputs["O"], inputs["Q"])
        # Maps are no traffic, and no allocation of the plan's.
        moved_bytes = inputs["Q"].nbytes
        assert execution.write_bytes == moved_bytes
        assert execution.read_bytes == moved_bytes + 512  # zeros of boxes that reach beyond the last row
        assert execution.allocated_bytes == inputs["Q"].nbytes
    assert EmulatorSanitizer(shuffled_runs=1).check(VARIANTS["fa3-numba"], PROBLEM, plan, inputs) == ()


def test_what_is_no_address_of_a_map_is_said():
    plan = moved(np.uint64(0x1000), whole("O", 2))
    with pytest.raises(KernelFault, match=r"there is no tensor map of 3 dimensions at address 0x1000;.*in Numba"):
        emulator().run(PROBLEM, plan, draw_inputs(PROBLEM, "normal", 1))


def test_a_variable_of_the_module_stays_from_launch_to_launch_and_wraps():
    counter = module_variable("asked")

    problem = Problem(heads=1, q_len=1, kv_len=1, head_dim=5)

    @cuda.jit
    def asks(y, most):
        y[0, 0, 0, cuda.blockIdx.x] = atomic_increment(counter(), uint32(most))

    plan = Plan((Launch(asks, (5,), (1,), ("O", np.int32(6))),) * 2)
    outputs = emulator().run(problem, plan, draw_inputs(problem, "normal", 1)).outputs
    assert sorted(outputs["O"][0, 0, 0]) == [0, 1, 2, 5, 6]


def test_any_of_a_named_barriers_threads():
    @cuda.jit
    def any_is(x, y):
        t = thread_index()
        group = int32(t // 64)
        y[t] = any_of_threads(int32(1 + group), 64, int32(x[t]))

    x = np.zeros(192, np.int32)
    x[[70, 130, 191]] = 1
    after, _ = run(any_is, {"x": x, "y": np.full_like(x, 7)}, ("x", "y"), block=(192, 1, 1))
    np.testing.assert_array_equal(after["y"], [0] * 64 + [1] * 128)


def test_the_kernel_can_be_cached():
    tile = default_tile(Problem(head_dim=64, dtype="float16"))
    identity, other = (
        function_identity(fa3_kernel(64, tile, warpgroup_band(False, False), dtype))
        for dtype in ("float16", "bfloat16")
    )
    assert identity is not None
    assert identity != other


def test_its_bytes_are_listed_where_it_is_planned_in_another_process(capsys: pytest.CaptureFixture[str]):
    problem = ["--seq-len", "100", "--head-dim", "48", "--dtype", "float16", "--mask", "causal"]
    assert main(["traffic", "fa3-numba", *problem]) == 0
    assert "variable taken" in capsys.readouterr().out


# More than a tile of each warpgroup. What is compiled for further features, test_twins.py has in smaller problems.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fields", "regime"),
    exhaustive_unless(
        lambda case: case[0] == {"head_dim": 48, "dtype": "float16", "mask": "causal"},
        [
            ({"head_dim": 48, "dtype": "float16", "mask": "causal"}, "normal"),
            ({"head_dim": 48, "dtype": "float16", "mask": "causal"}, "non-finite"),
            ({"head_dim": 48, "dtype": "float16", "scale": -0.25}, "rising"),
            ({"head_dim": 48, "dtype": "float16", "mask": "window:30,11"}, "hot"),
            ({"head_dim": 48, "dtype": "float16", "mask": "causal+window:70"}, "non-finite"),
            ({"head_dim": 96, "dtype": "bfloat16", "mask": "causal"}, "hot"),
            ({"head_dim": 128, "dtype": "bfloat16", "mask": "window:100,20"}, "non-finite"),
            ({"head_dim": 256, "dtype": "float16", "scale": 0.0}, "normal"),
            ({"head_dim": 48, "dtype": "float16", "mask": "causal", **TERMS}, "normal"),
            ({"head_dim": 48, "dtype": "float16", **TERMS}, "non-finite"),
            ({"head_dim": 48, "dtype": "float16", "mask": f"causal+{SEQUENCES}", "layout": "bshd", **TERMS}, "normal"),
        ],
    ),
    ids=str,
)
def test_both_backends_give_the_same_bits(fields: dict[str, Any], regime: str):
    problem = Problem(heads=4, kv_heads=2, q_len=250, kv_len=300, **fields)
    inputs = draw_inputs(problem, regime, seed=1)
    cupy, numba = (
        emulator().run(problem, VARIANTS[f"fa3-{backend}"].plan(problem), inputs) for backend in ("cupy", "numba")
    )
    for name in ("O", "lse"):
        assert cupy.outputs[name].tobytes() == numba.outputs[name].tobytes()
    assert (cupy.read_bytes, cupy.write_bytes) == (numba.read_bytes, numba.write_bytes)
