"""Whatever a kernel does wrong becomes one error that says where, and the process lives on."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from numba import cuda

from harness import PtxKernel
from harness.emulator.executor import EmulatorExecutor, step_limits
from harness.execution.run_settings import RunSettings
from harness.model.operation import draw_inputs
from harness.model.plan import Launch, Plan
from harness.operations.attention.problem import Problem
from harness.support.errors import KernelFault, PlanError
from tests.emulator.cuda_kernel import cuda_source, run

X = {"X": np.arange(64, dtype=np.float32)}


def fault(source: str, kind: str, *words: str, arrays: dict[str, np.ndarray] = X, **launch: object) -> str:
    """Run a kernel that has to fault in this way; its message holds all the words."""
    args = tuple(arrays)
    with pytest.raises(KernelFault) as caught:
        run(source, arrays, args, **launch)  # type: ignore[arg-type]
    message = str(caught.value)
    assert caught.value.kind == kind, message
    for word in words:
        assert word in message, message
    return message


def test_load_behind_the_end_names_line_block_thread_buffer_and_offset() -> None:
    source = """#line 1 "stray.cu"
extern "C" __global__ void k(float* x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] =
        x[i + 1];
}
"""
    words = ("kernel k", "stray.cu:4", "block (1, 0, 0)", "thread (31, 0, 0)")
    words += ("out-of-bounds load of 4 bytes at byte offset 256 of buffer X, which has 256 bytes",)
    fault(source, "out of bounds", *words, grid=(2, 1, 1))


def test_store_in_front_of_the_beginning() -> None:
    source = cuda_source("float* x", "x[(int)threadIdx.x - 1] = 1.f;")
    fault(source, "out of bounds", "store", "offset -4", "buffer X", "thread (0, 0, 0)")


def test_a_stray_offset_does_not_reach_the_next_buffer() -> None:
    arrays = {"X": np.zeros(32, np.float32), "Y": np.zeros(1 << 20, np.float32)}
    source = cuda_source("float* x, float* y", "y[threadIdx.x] = x[threadIdx.x + 4096];")
    fault(source, "out of bounds", "load", "offset 16,384", "buffer X", arrays=arrays)


def test_inactive_lanes_may_hold_wild_addresses() -> None:
    source = cuda_source("float* x", "int i = threadIdx.x * 1000; if (i < 64) x[i] = 7.f;")
    after, _ = run(source, X, ("X",))
    assert after["X"][0] == 7 and after["X"][1] == 1


def test_misaligned_vector_load() -> None:
    source = cuda_source("float* x", "float4 v = *(float4*)(x + threadIdx.x); x[threadIdx.x] = v.x + v.y * v.z - v.w;")
    fault(source, "misaligned", "load of 16 bytes", "byte offset 4 of", "multiple of 16", "thread (1, 0, 0)")


def test_null_pointer() -> None:
    source = cuda_source("float* x", "if (x[0] == 0.f) *(volatile float*)nullptr = 1.f;")
    fault(source, "out of bounds", "null pointer")


def test_shared_memory_out_of_bounds_static_and_dynamic() -> None:
    static = cuda_source(
        "float* x",
        "int i = threadIdx.x; __shared__ float s[40]; s[i * 2] = x[i]; __syncthreads(); x[i] = s[i];",
    )
    fault(static, "out of bounds", "store", "offset 160", "shared memory", "160 bytes", "thread (20, 0, 0)")
    dynamic = cuda_source(
        "float* x",
        "int i = threadIdx.x; extern __shared__ float s[]; s[i] = x[i]; __syncthreads(); x[i] = s[31 - i];",
    )
    fault(dynamic, "out of bounds", "shared memory", "offset 124", "124 bytes", shared_bytes=124)
    after, _ = run(dynamic, X, ("X",), shared_bytes=128)
    assert list(after["X"][:32]) == list(range(31, -1, -1))


def test_local_memory_out_of_bounds() -> None:
    source = """
extern "C" __global__ void k(float* x) {
    float a[8];
    for (int i = 0; i < 8; ++i) a[i] = x[i];
    int at = (int)x[threadIdx.x];
    x[threadIdx.x] = a[at] + a[(at * 3) & 7];
}
"""
    fault(source, "out of bounds", "local memory", "offset 32")


def test_a_barrier_in_divergent_code() -> None:
    source = cuda_source(
        "float* x", "if (threadIdx.x < 20) { x[threadIdx.x] = 1.f; __syncthreads(); x[threadIdx.x] += 1.f; }"
    )
    fault(source, "divergent barrier", "lanes 20-31", "warp 0", "barrier in divergent code")


def test_a_barrier_after_some_threads_returned() -> None:
    source = cuda_source("float* x", "if (threadIdx.x == 5) return; __syncthreads(); x[threadIdx.x] = 0.f;")
    fault(source, "divergent barrier", "lanes 5 of warp 0")


def test_deadlock_says_who_waits_where_and_who_has_gone() -> None:
    source = """#line 1 "waits.cu"
extern "C" __global__ void k(float* x) {
    if (threadIdx.x < 64) {
        x[threadIdx.x] = 1.f;
        __syncthreads();
        x[threadIdx.x] += 1.f;
    }
}
"""
    fault(source, "barrier deadlock", "warps 0-1 wait", "waits.cu:4", "warps 2-3 have exited", block=(128, 1, 1))


def test_deadlock_between_two_barriers() -> None:
    source = """
extern "C" __global__ void k(float* x) {
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;"); else asm volatile("bar.sync 2, 64;");
    x[threadIdx.x] = 1.f;
}
"""
    fault(source, "barrier deadlock", "warp 0 waits", "warp 1 waits", block=(64, 1, 1))


def test_an_endless_loop_meets_the_step_limit() -> None:
    source = cuda_source("float* x", "for (int i = 0; i >= 0; i = (i + 1) & 31) x[i] = i;")
    fault(source, "step limit", "2000000 instructions", "--step-limit")


ENDLESS = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() {\nL: bra L;\n}\n"


def test_an_endless_loop_that_touches_no_memory_meets_it_too() -> None:
    words = r"kernel k, .*\(PTX line 5\), block \(0, 0, 0\), thread \(0, 0, 0\): warp 0 was stopped after 1000 instr"
    with pytest.raises(KernelFault, match=words) as caught:
        run(PtxKernel(ENDLESS, "k"), {}, (), step_limit=1000)
    assert caught.value.kind == "step limit"


def test_all_warps_of_a_block_share_a_limit_that_nobody_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows from the problem, and is never less than some millions."""
    problem = Problem(heads=1, q_len=4, kv_len=4, head_dim=16)
    assert step_limits(None, problem.flops) == (1 << 24, 1 << 25)
    assert step_limits(None, 10**7) == (16 * 10**7, 32 * 10**7) and step_limits(None, 10**12)[0] == 10**9
    assert step_limits(7, 10**12) == (7, 0)
    monkeypatch.setattr("harness.emulator.executor.FEWEST_STEPS", 1 << 17)
    monkeypatch.setattr("harness.emulator.executor.STEPS_PER_FLOP", 0)
    inputs = draw_inputs(problem)

    def message(threads: int, step_limit: int | None = None) -> str:
        plan = Plan((Launch(PtxKernel(ENDLESS, "k"), (2,), (threads,), ()),))
        with pytest.raises(KernelFault) as caught:
            EmulatorExecutor(RunSettings(step_limit=step_limit)).run(problem, plan, inputs)
        return str(caught.value)

    assert "warp 0 was stopped after 131072 instructions;" in message(32)
    assert "the warps of the block were stopped after 262144 instructions in total;" in message(128)
    assert "warp 0 was stopped after 200000 instructions" in message(128, 200_000)


def test_a_grid_that_would_take_for_ever_is_refused_at_once() -> None:
    """In a GPU's launches there may be as many; how many a launch may have here grows with the limit of steps."""
    empty = PtxKernel(ENDLESS.replace("L: bra L;", "ret;"), "k")
    words = (
        "a grid of 2147483647 x 65535 x 65535 has 9,223,090,559,730,712,575 blocks; .* at most 33,554,432 in a launch"
    )
    with pytest.raises(KernelFault, match=words) as caught:
        run(empty, {}, (), grid=(2**31 - 1, 65535, 65535), block=(1, 1, 1))
    assert caught.value.kind == "step limit"
    with pytest.raises(KernelFault, match="at most 40,000,000 in a launch"):
        run(empty, {}, (), grid=(40_000_001, 1, 1), block=(1, 1, 1), step_limit=40_000_000)
    run(empty, {}, (), grid=(50_000, 1, 1), block=(1, 1, 1), step_limit=10)


def test_an_endless_loop_through_a_branch_table_meets_it_too() -> None:
    body = """
extern "C" __global__ void k(int* x) {
    asm volatile("{ .reg .u32 i; and.b32 i, %0, 1; t: .branchtargets A, B; A: bra.uni B; B: brx.idx i, t; }" ::"r"(*x));
}
"""
    fault(body, "step limit", "--step-limit")


def test_a_trap_and_a_failed_assertion() -> None:
    fault(cuda_source("float* x", "if (x[threadIdx.x] == 9.f) __trap();"), "trap", "thread (9, 0, 0)")


def test_the_first_faulting_block_is_reported_whatever_the_number_of_cores() -> None:
    source = cuda_source("float* x", "if (blockIdx.x % 7 == 5) x[-1 - (int)blockIdx.x] = 0.f;")
    messages = {fault(source, "out of bounds", "block (5, 0, 0)", grid=(400, 1, 1), threads=n) for n in (1, 2, 3)}
    assert len(messages) == 1


def test_numba_knows_how_much_dynamic_shared_memory_it_has() -> None:
    @cuda.jit
    def sizes(x):  # type: ignore[no-untyped-def]
        static, dynamic = cuda.shared.array(5, numba.float32), cuda.shared.array(0, numba.float32)
        static[0] = dynamic[len(dynamic) - 1] = 1
        x[0], x[1] = len(static), len(dynamic)

    after, _ = run(sizes, X, ("X",), shared_bytes=128)
    assert list(after["X"][:2]) == [5, 32]


def test_numba_kernels_are_reported_at_their_own_line() -> None:
    @cuda.jit
    def k(x):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        x[i + 40] = numba.float32(1.0)

    words = r"test_faults\.py:\d+ .*out-of-bounds store of 4 bytes at byte offset 256 .*X"
    with pytest.raises(KernelFault, match=words):
        run(k, X, ("X",))


STRAY = {
    "a vector over the end of shared memory": (
        """
    __shared__ __align__(16) float s[44];
    for (int j = i; j < 44; j += 32) s[j] = x[i];
    __syncthreads();
    float2 v = ((float2*)s)[i];
    x[i] = v.x * v.y;
""",
        ("out of bounds", "load of 8 bytes", "byte offset 176 of shared memory", "thread (22, 0, 0)"),
    ),
    "a vector over the end of a buffer": (
        "((float4*)x)[i] = make_float4(1.f, 2.f, 3.f, 4.f);",
        ("out of bounds", "store of 16 bytes", "byte offset 256 of buffer X", "thread (16, 0, 0)"),
    ),
    "a constant table": (
        "__constant__ static float table[8] = {1, 2, 3, 4, 5, 6, 7, 8}; x[i] = table[i];",
        ("out of bounds", "load of 4 bytes", "byte offset 32 of variable", "thread (8, 0, 0)"),
    ),
    "a misaligned shared vector": (
        """
    __shared__ __align__(16) float s[66];
    s[i] = s[i + 32] = s[i + 34] = x[i];
    __syncthreads();
    float2 v = *(float2*)(s + 2 * i + 1);
    x[i] = v.x * v.y;
""",
        ("misaligned", "load of 8 bytes", "byte offset 4 of shared memory", "thread (0, 0, 0)"),
    ),
    "a misaligned local vector": (
        """
    float a[16];
    for (int j = 0; j < 16; ++j) a[j] = x[j];
    float2 v = *(float2*)(a + (int)x[i]);
    x[i] = v.x * v.y;
""",
        ("misaligned", "of 8 bytes", "byte offset 4 of local memory", "thread (1, 0, 0)"),
    ),
    "an atomic in front of a buffer": (
        "atomicAdd(x - 1 + i, 1.f);",
        ("out of bounds", "atomic of 4 bytes", "byte offset -4 of buffer X", "thread (0, 0, 0)"),
    ),
    "an atomic behind shared memory": (
        "__shared__ int s[16]; s[i & 15] = 0; __syncthreads(); atomicAdd(&s[i], 1); __syncthreads(); x[i] = s[i & 15];",
        ("out of bounds", "atomic of 4 bytes", "byte offset 64 of shared memory", "thread (16, 0, 0)"),
    ),
}


@pytest.mark.parametrize("name", STRAY)
def test_stray_accesses_of_every_kind_and_space(name: str) -> None:
    body, words = STRAY[name]
    fault(cuda_source("float* x", f"int i = threadIdx.x; {body}"), *words)


@cuda.jit
def numba_shared_beyond_its_end(x):  # type: ignore[no-untyped-def]
    s = cuda.shared.array(40, numba.float32)
    s[2 * cuda.threadIdx.x] = x[cuda.threadIdx.x]
    cuda.syncthreads()
    x[cuda.threadIdx.x] = s[cuda.threadIdx.x]


@cuda.jit
def numba_local_beyond_its_end(x):  # type: ignore[no-untyped-def]
    a = cuda.local.array(8, numba.float32)
    for i in range(8):
        a[i] = x[i]
    x[cuda.threadIdx.x] = a[int(x[cuda.threadIdx.x])]


@cuda.jit
def numba_barrier_in_divergent_code(x):  # type: ignore[no-untyped-def]
    if cuda.threadIdx.x < 20:
        x[cuda.threadIdx.x] = numba.float32(1.0)
        cuda.syncthreads()


@pytest.mark.parametrize(
    ("kernel", "line", "words"),
    [
        (numba_shared_beyond_its_end, 3, ("out of bounds", "store", "byte offset 160 of shared memory")),
        (numba_local_beyond_its_end, 5, ("out of bounds", "load", "byte offset 32 of local memory")),
        (numba_barrier_in_divergent_code, 4, ("divergent barrier", "lanes 20-31 of warp 0")),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_numba_kernels_that_go_astray(kernel: object, line: int, words: tuple[str, ...]) -> None:
    first = kernel.py_func.__code__.co_firstlineno  # type: ignore[attr-defined]
    fault(kernel, *words, f"test_faults.py:{first + line}")  # type: ignore[arg-type]


def test_too_much_shared_memory_is_refused() -> None:
    with pytest.raises(PlanError, match="shared memory"):
        run(cuda_source("float* x", "x[0] = 0.f;"), X, ("X",), shared_bytes=300_000)


def test_too_much_static_shared_memory_is_refused_as_ptxas_does() -> None:
    source = cuda_source("float* x", "__shared__ float s[12289]; s[threadIdx.x] = x[0]; __syncthreads(); x[0] = s[1];")
    with pytest.raises(PlanError, match="49156 bytes of static shared memory"):
        run(source, X, ("X",))


def test_the_executor_lives_on_after_a_fault() -> None:
    fault(cuda_source("float* x", "x[1000] = 0.f;"), "out of bounds")
    after, _ = run(cuda_source("float* x", "x[threadIdx.x] = 2.f;"), X, ("X",))
    assert (after["X"][:32] == 2).all() and after["X"][32] == 32
