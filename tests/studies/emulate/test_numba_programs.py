"""Programs that use `numba.cuda`, unchanged, through `python -m harness emulate`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = "import math\nimport sys\nimport numpy as np\nfrom numba import cuda, float32, int32\n"

PROGRAMS = {
    "vector add": """
@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]
x = np.arange(1000, dtype=np.float32)
out = cuda.device_array_like(x)
add[8, 128](cuda.to_device(x), x, out)
assert (out.copy_to_host() == 2 * x).all()
add.forall(x.size)(x, x, out)
assert (out.copy_to_host() == 2 * x).all() and out[7] == 14
""",
    "reduction in shared memory": """
@cuda.jit
def total(x, out):
    part = cuda.shared.array(128, float32)
    lane = cuda.threadIdx.x
    part[lane] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = 64
    while step:
        if lane < step:
            part[lane] += part[lane + step]
        cuda.syncthreads()
        step //= 2
    if lane == 0:
        cuda.atomic.add(out, 0, part[0])
x = np.ones(1024, np.float32)
out = np.zeros(1, np.float32)
total[8, 128](x, out)
assert out[0] == 1024
""",
    "matrix product of the documentation": """
TPB = 16
@cuda.jit
def fast_matmul(A, B, C):
    sA = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
    sB = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tmp = float32(0.)
    for i in range(cuda.gridDim.x):
        sA[ty, tx] = 0
        sB[ty, tx] = 0
        if y < A.shape[0] and (tx + i * TPB) < A.shape[1]:
            sA[ty, tx] = A[y, tx + i * TPB]
        if x < B.shape[1] and (ty + i * TPB) < B.shape[0]:
            sB[ty, tx] = B[ty + i * TPB, x]
        cuda.syncthreads()
        for j in range(TPB):
            tmp += sA[ty, j] * sB[j, tx]
        cuda.syncthreads()
    if y < C.shape[0] and x < C.shape[1]:
        C[y, x] = tmp
A = np.arange(16 * 33, dtype=np.float32).reshape(16, 33) % 7
C = np.zeros((16, 16), np.float32)
fast_matmul[(3, 3), (TPB, TPB)](A, A.T.copy(), C)
assert (C == A @ A.T).all()
""",
    "streams, events, pinned, mapped and managed memory": """
@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2
stream, first, last = cuda.stream(), cuda.event(), cuda.event()
with stream.auto_synchronize():
    pinned = cuda.pinned_array(64, np.float64)
    pinned[:] = 1
    there = cuda.to_device(pinned, stream=stream)
    first.record(stream)
    double[1, 64, stream](there)
    last.record(stream)
    there.copy_to_host(pinned, stream=stream)
assert (pinned == 2).all() and first.elapsed_time(last) > 0
for array in (cuda.mapped_array(64), cuda.managed_array(64)):
    array[:] = 3
    double[1, 64](array)
    cuda.synchronize()
    assert (array == 6).all()
""",
    "device functions, constants, 2D copies, random states": """
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32
TABLE = np.arange(32, dtype=np.int32)
@cuda.jit(device=True)
def look(i):
    return cuda.const.array_like(TABLE)[i]
@cuda.jit
def kernel(out, states):
    i = cuda.grid(1)
    u = xoroshiro128p_uniform_float32(states, i)
    out[i] = look(i) if 0 <= u < 1 else -1
out = cuda.device_array((4, 32), np.int32)
kernel[1, 32](out[2], create_xoroshiro128p_states(32, seed=1))
assert (out.copy_to_host()[2] == TABLE).all()
assert (out[2, ::2].copy_to_host() == TABLE[::2]).all()
""",
    "linked CUDA C++": """
SOURCE = cuda.CUSource('''
__device__ int factor = 3;
extern "C" __device__ int scaled(int* result, int x) { *result = factor * x; return 0; }
''')
scaled = cuda.declare_device("scaled", "int32(int32)", link=SOURCE)
@cuda.jit
def kernel(out):
    out[cuda.threadIdx.x] = scaled(cuda.threadIdx.x)
out = np.zeros(32, np.int32)
kernel[1, 32](out)
assert (out == 3 * np.arange(32)).all()
@cuda.jit("void(float64[::1])", max_registers=24)
def limited(x):
    x[0] = math.pow(math.sin(x[1]), math.cos(x[2]))
assert limited.get_regs_per_thread() <= 24
""",
    "`cuda.reduce` and `grid.sync`": """
assert cuda.reduce(lambda a, b: a + b)(np.arange(1000, dtype=np.int64)) == 499500
@cuda.jit
def neighbours(x, out):
    i = cuda.grid(1)
    x[i] = i
    cuda.cg.this_grid().sync()
    out[i] = x[x.size - 1 - i]
x, out = np.zeros(64, np.int32), np.zeros(64, np.int32)
neighbours[2, 32](x, out)
assert (out == np.arange(64)[::-1]).all()
""",
    "a Python process that the program starts": """
import subprocess
code = "from numba import cuda; print(cuda.get_current_device().name)"
assert "H100" in subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
""",
    "properties and free memory of the device": """
device = cuda.get_current_device()
assert device.compute_capability == (9, 0) and device.MULTIPROCESSOR_COUNT == 132
assert b"H100" in device.name if isinstance(device.name, bytes) else "H100" in device.name
assert cuda.is_available() and len(cuda.gpus) == 1
free, total = cuda.current_context().get_memory_info()
assert 0 < free <= total
""",
}


def emulate(tmp_path: Path, program: str, *words: str, arguments: tuple[str, ...] = ()):
    script = tmp_path / "program.py"
    script.write_text(BEGIN + program)
    command = [sys.executable, "-m", "harness", "emulate", *words, str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


ONE_AFTER_THE_OTHER = """
import json
import runpy
import traceback
from pathlib import Path
failed = {}
for script in sys.argv[1:]:
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception:
        failed[script] = traceback.format_exc()
Path(__file__).with_name("failed.json").write_text(json.dumps(failed))
"""
"""Runs programs in one process, whose start takes longer than most of them, and notes what they raise."""


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What was raised by which of the programs."""
    folder = tmp_path_factory.mktemp("programs")
    scripts = {str(folder / f"{number}.py"): name for number, name in enumerate(PROGRAMS)}
    for script, name in scripts.items():
        Path(script).write_text(BEGIN + PROGRAMS[name])
    done = emulate(folder, ONE_AFTER_THE_OTHER, arguments=tuple(scripts))
    assert done.returncode == 0, done.stderr
    return {scripts[script]: raised for script, raised in json.loads((folder / "failed.json").read_text()).items()}


@pytest.mark.compiles
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_unchanged(failed: dict[str, str], name: str) -> None:
    assert name not in failed, failed[name]


OUT_OF_BOUNDS = """
@cuda.jit
def beyond(x):
    x[cuda.grid(1) + 1000] = 1
try:
    beyond[1, 32](cuda.device_array(1000))
finally:
    try:
        cuda.device_array(1)
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.compiles
def test_a_fault_names_the_line_and_is_sticky(tmp_path: Path) -> None:
    done = emulate(tmp_path, OUT_OF_BOUNDS)
    assert done.returncode == 1
    assert f"kernel __main__.beyond, {tmp_path}/program.py:8" in done.stderr
    assert "out-of-bounds store of 8 bytes at byte offset 8,000 of buffer allocation-1" in done.stderr
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in done.stderr and "CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout
    assert "harness/" not in done.stderr


@pytest.mark.compiles
def test_sanitize_reports_a_barrier_that_names_lanes_on_another_path(tmp_path: Path) -> None:
    done = emulate(tmp_path, "assert cuda.reduce(lambda a, b: a + b)(np.ones(1000, np.int64)) == 1000", "--sanitize")
    assert done.returncode == 1 and "divergent barrier: kernel numba.cuda.kernels.reduction" in done.stderr


OTHER_GPU = """
device = cuda.get_current_device()
assert device.compute_capability == (8, 0) and device.MULTIPROCESSOR_COUNT == 108
assert device.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR == 164 * 1024
@cuda.jit
def double(x):
    x[cuda.threadIdx.x] *= 2
x = np.ones(32)
double[1, 32](x)
assert (x == 2).all()
"""


@pytest.mark.compiles
def test_another_gpu(tmp_path: Path) -> None:
    done = emulate(tmp_path, OTHER_GPU, "--gpu", "a100")
    assert done.returncode == 0, done.stderr
    unknown = emulate(tmp_path, OTHER_GPU, "--gpu", "b42")
    assert unknown.returncode == 2 and "choose one of h200, h100, b200, a100" in unknown.stderr


LONG_LOOP = """
@cuda.jit
def steps(x, n):
    for _ in range(n):
        x[0] = x[0] * 3 + 1
steps[1, 1](np.zeros(1, np.int64), 5000)
"""


@pytest.mark.compiles
def test_a_step_limit_stops_long_kernels(tmp_path: Path) -> None:
    assert emulate(tmp_path, LONG_LOOP, "--step-limit", "100000").returncode == 0
    stopped = emulate(tmp_path, LONG_LOOP, "--step-limit", "1000")
    assert stopped.returncode == 1 and "CUDA_ERROR_LAUNCH_TIMEOUT" in stopped.stderr
    assert "was stopped after 1000 instructions" in stopped.stderr and "raise --step-limit" in stopped.stderr
    wrong = emulate(tmp_path, LONG_LOOP, "--step-limit", "0")
    assert wrong.returncode == 2 and "--step-limit is 0; it has to be at least 1" in wrong.stderr


RACE = """
@cuda.jit
def shift(x):
    part = cuda.shared.array(64, int32)
    i = cuda.threadIdx.x
    part[i] = x[i]
    BARRIERx[i] = part[(i + 1) % 64]
x = np.arange(64, dtype=np.int32)
shift[1, 64](x)
"""


@pytest.mark.compiles
def test_sanitize_reports_races_and_fails(tmp_path: Path) -> None:
    racing = emulate(tmp_path, RACE.replace("BARRIER", ""), "--sanitize")
    assert racing.returncode == 1 and "RAW race" in racing.stderr and "program.py" in racing.stderr
    right = emulate(tmp_path, RACE.replace("BARRIER", "cuda.syncthreads()\n    "), "--sanitize", "--seed", "3")
    assert (right.returncode, right.stderr.splitlines()[-1]) == (0, "the sanitizer found nothing")


@pytest.mark.compiles
def test_summary_counts_by_buffer_and_line(tmp_path: Path) -> None:
    done = emulate(tmp_path, PROGRAMS["vector add"], "--summary")
    assert "__main__.add, launched 2 times" in done.stderr
    row = next(line.split() for line in done.stderr.splitlines() if line.startswith("allocation-1"))
    assert row == ["allocation-1", "store", "program.py:10", "64", "8,000", "8,000"]


def test_the_program_has_its_arguments_and_its_status(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import sys\nprint(__name__, *sys.argv[1:])\nsys.exit(7)\n")
    command = [sys.executable, "-m", "harness", "emulate"]
    done = subprocess.run([*command, str(script), "--summary", "-x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "__main__ --summary -x\n", "")
    module = [*command, "-m", "program", "--gpu"]
    done = subprocess.run(module, capture_output=True, text=True, check=False, cwd=tmp_path, env=_environment())
    assert (done.returncode, done.stdout) == (7, "__main__ --gpu\n")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness", "emulate"]
    for words, said in (([], "emulate needs a program"), (["none.py"], "there is no file none.py")):
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_the_page_lists_each_program() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "emulate.md").read_text()
    listed = [line.split("|")[2].strip() for line in page.splitlines() if line.startswith("| `numba.cuda` |")]
    assert listed == list(PROGRAMS)
