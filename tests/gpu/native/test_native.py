"""Every registered variant on the GPU of this machine, and the GPU executor's own promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cupy
import numpy as np
import pytest

from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.outcome import Row
from harness.execution.planning.variant_calls import refusal_of
from harness.gpu.executor import GpuExecutor
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.plan import Buffer, Launch, Plan
from harness.operations.attention.problem import Problem
from harness.support.errors import CompileError, KernelFault, PlanError, SandboxError

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(not GpuExecutor.available(), reason="CuPy finds no GPU on this machine")

VARIANTS = [variant.name for variant in discover().registry.select(None, "attention")]
PROBLEMS = {
    "plain": {},
    "one element": {"heads": 1, "q_len": 1, "kv_len": 1, "head_dim": 1},
    "decode": {"batch": 3, "heads": 8, "kv_heads": 2, "q_len": 1, "kv_len": 1000},
    "primes": {"q_len": 131, "kv_len": 257, "head_dim": 37},
    "causal": {"mask": "causal", "q_len": 200, "kv_len": 200},
    "causal, more keys": {"mask": "causal", "q_len": 65, "kv_len": 190, "head_dim": 128},
    "causal, rows that see nothing": {"mask": "causal", "q_len": 190, "kv_len": 65},
    "grouped heads": {"batch": 2, "heads": 6, "kv_heads": 3, "q_len": 97, "kv_len": 64, "scale": -0.4},
    "large": {"batch": 2, "heads": 4, "q_len": 1024, "kv_len": 1024},
}


@pytest.fixture(scope="module")
def executor() -> GpuExecutor:
    return GpuExecutor()


@pytest.fixture(scope="module")
def questions() -> dict[tuple[str, str, str], Question]:
    """The oracle's answers, kept: every variant is asked the same."""
    return {}


def question(questions: dict, shape: str, dtype: str, regime: str = "normal") -> Question:
    key = (shape, dtype, regime)
    if key not in questions:
        problem = Problem(**({"dtype": dtype} | PROBLEMS[shape]))
        questions[key] = Question.pose(problem, draw_inputs(problem, regime, seed=2))
    return questions[key]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", PROBLEMS)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_right_natively(executor: GpuExecutor, questions: dict, name: str, shape: str, dtype: str):
    asked = question(questions, shape, dtype)
    done = attempt(discover().registry.get(name), asked.problem, executor, question=asked)
    row, execution = Row.of(done), done.execution
    if row.verdict == "unsupported":
        pytest.skip(row.reason)
    assert row.verdict == "pass", row.reason
    assert row.time_ms > 0
    assert execution.launches[0].traffic is None
    assert row.total_bytes is None


@pytest.mark.parametrize("regime", ["hot", "negative", "rising", "needle", "offset"])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_right_on_hard_inputs(executor: GpuExecutor, questions: dict, name: str, regime: str):
    """On prime lengths, or the least regular problem that it takes; wrong where it declares that it is.

    Factors of 8 bits leave an error that a trivial wrong answer is within where all values are alike.
    """
    variant = discover().registry.get(name)
    asked = next(
        question(questions, shape, dtype, regime)
        for shape in ("primes", "causal, rows that see nothing", "plain")
        for dtype in ("float32", "float16")
        if refusal_of(variant, Problem(**({"dtype": dtype} | PROBLEMS[shape]))) is None
    )
    row = attempt(variant, asked.problem, executor, question=asked)
    if row.verdict == "unsupported" and variant.arch is not None:  # kernels for an architecture that this GPU is not
        pytest.skip(row.reason)
    expected = ["fail"] if regime in variant.fails_in else ["pass"]
    if variant.numerics.factors == "e4m3":
        expected.append("undecided")
    assert row.verdict in expected, row.reason


# --- the executor ----------------------------------------------------------------------------------------------------

SMALL = Problem(heads=1, q_len=4, kv_len=4, head_dim=4)

COPY = """
extern "C" __global__ void copy(const float* from, float* to, int n)
{
    extern __shared__ float staged[];
    int i = threadIdx.x;
    if (i < n) { staged[i] = from[i]; to[i] = staged[i]; }
}
"""


def run(executor: GpuExecutor, *launches: Launch, buffers: tuple[Buffer, ...] = ()):
    return executor.run(SMALL, Plan(launches, buffers), draw_inputs(SMALL))


def copy(source: str, target: str, shared_bytes: int = 256, n: int = 16) -> Launch:
    return Launch(cupy.RawKernel(COPY, "copy"), (1,), (32,), (source, target, np.int32(n)), shared_bytes)


def numba_copy(shared_bytes: int = 256) -> Launch:
    import numba
    from numba import cuda

    @cuda.jit
    def copy_rows(source, target):
        staged = cuda.shared.array(0, numba.float32)
        i = cuda.threadIdx.x
        if i < source.shape[2]:
            for c in range(source.shape[3]):
                staged[i] = source[0, 0, i, c]
                target[0, 0, i, c] = staged[i]

    return Launch(copy_rows, (1,), (32,), ("scratch", "O"), shared_bytes)


def test_cupy_and_numba_work_on_the_same_memory_in_order(executor: GpuExecutor):
    scratch = Buffer("scratch", SMALL.q_shape, "float32")
    execution = run(executor, copy("Q", "scratch"), numba_copy(), buffers=(scratch,))
    assert np.array_equal(execution.outputs["O"], draw_inputs(SMALL)["Q"])
    assert execution.allocated_bytes == 2 * 64
    assert 0 < execution.time_ms.low <= execution.time_ms.median <= execution.time_ms.high


def test_outputs_and_scratch_begin_as_nan_in_every_run(executor: GpuExecutor):
    for _ in range(2):
        out = run(executor, copy("Q", "O", n=3)).outputs["O"].ravel()
        assert np.array_equal(out[:3], draw_inputs(SMALL)["Q"].ravel()[:3])
        assert (out[3:].view(np.uint32) == 0xFFFFFFFF).all()
    scratch = Buffer("scratch", SMALL.q_shape, "float32")
    out = run(executor, copy("scratch", "O"), buffers=(scratch,)).outputs["O"]
    assert (out.view(np.uint32) == 0xFFFFFFFF).all()


@pytest.mark.parametrize("make", [lambda n: copy("scratch", "O", n), numba_copy])
def test_more_than_48_kilobytes_of_shared_memory(executor: GpuExecutor, make):
    scratch = Buffer("scratch", SMALL.q_shape, "float32")
    most = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    run(executor, copy("Q", "scratch"), make(most), buffers=(scratch,))
    with pytest.raises(PlanError, match="dynamic shared memory"):
        run(executor, copy("Q", "scratch"), make(most + 1024), buffers=(scratch,))
    # The executor stays usable.
    run(executor, copy("Q", "O"))


def test_compile_errors_carry_the_log(executor: GpuExecutor):
    with pytest.raises(CompileError, match=r"(?s)kernel broken .*error"):
        run(executor, Launch(cupy.RawKernel('extern "C" __global__ void broken() { x }', "broken"), (1,), (1,), ()))
    from numba import cuda

    @cuda.jit
    def nonsense(out):
        out[0] = no_such_thing  # noqa: F821

    with pytest.raises(CompileError, match=r"(?s)kernel nonsense .*no_such_thing"):
        run(executor, Launch(nonsense, (1,), (1,), ("O",)))
    with pytest.raises(PlanError, match=r"has to be a cupy\.RawKernel"):
        run(executor, Launch(print, (1,), (1,), ()))


def test_a_launch_that_cuda_refuses_names_the_kernel(executor: GpuExecutor):
    bounded = cupy.RawKernel(COPY.replace("void copy", "void __launch_bounds__(32) copy"), "copy")
    with pytest.raises(SandboxError, match="copy"):
        run(executor, Launch(bounded, (1,), (64,), ("Q", "O", np.int32(1))))
    run(executor, copy("Q", "O"))


def test_a_fault_names_the_kernel_and_later_runs_say_why_they_do_not(tmp_path: Path):
    # In a process of its own: after an illegal address CUDA gives a process nothing more.
    program = tmp_path / "fault.py"
    program.write_text(
        "import cupy\n"
        "from harness.support.errors import KernelFault, SandboxError\n"
        "from harness.gpu.executor import GpuExecutor\n"
        "from harness.model.operation import draw_inputs\n"
        "from harness.operations.attention.problem import Problem\n"
        "from harness import Launch, Plan\n"
        "problem = Problem(heads=1, q_len=4, kv_len=4, head_dim=4)\n"
        "code = 'extern \"C\" __global__ void wild(float* O) { *(float*)64 = 1.0f; }'\n"
        "plan = Plan((Launch(cupy.RawKernel(code, 'wild'), (1,), (1,), ('O',)),))\n"
        "executor = GpuExecutor()\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        executor.run(problem, plan, draw_inputs(problem))\n"
        "    except KernelFault as error:\n"
        "        print('fault', error.kind, '|', error, flush=True)\n"
        "    except SandboxError as error:\n"
        "        print('later', error, flush=True)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("fault out of bounds | kernel wild: "), done
    assert lines[1].startswith("later not run: kernel wild broke"), done


def test_a_store_into_an_input_is_a_fault_that_leaves_the_gpu_usable(executor: GpuExecutor):
    with pytest.raises(KernelFault, match=r"^kernel copy: store into K, which is an input: 16 of its 16 .* row 0, col"):
        run(executor, copy("Q", "K"), copy("Q", "O"))
    assert run(executor, copy("Q", "Q"), copy("Q", "O")).outputs["O"].size


def test_unwritten_output_differs_from_stored_unwritten_scratch(executor: GpuExecutor):
    scratch = Buffer("scratch", SMALL.q_shape, "float32")
    some = run(executor, copy("scratch", "O", n=13), buffers=(scratch,))
    assert np.isnan(some.outputs["O"]).all()
    assert some.unwritten["O"].ravel().tolist() == [False] * 13 + [True] * 3
