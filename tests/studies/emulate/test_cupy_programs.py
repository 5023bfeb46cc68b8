"""Programs that use CuPy, unchanged, through `python -m harness emulate`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cupy")
pytestmark = pytest.mark.compiles

BEGIN = "import numpy as np\nimport cupy\n"

PROGRAMS = {
    "`RawKernel`, and `RawModule` with templates and variables": """
double = cupy.RawKernel('extern "C" __global__ void f(float* x, float by) { x[threadIdx.x] *= by; }', "f")
x = cupy.asarray(np.arange(32, dtype=np.float32))
double((1,), (32,), (x, np.float32(2)))
assert (cupy.asnumpy(x) == 2 * np.arange(32)).all() and double.num_regs > 0
SOURCE = '''
__constant__ int step;
template<typename T> __global__ void raise(T* x) { x[threadIdx.x] += (T)step; }
'''
module = cupy.RawModule(code=SOURCE, options=("-std=c++17",), name_expressions=["raise<int>", "raise<double>"])
address = module.get_global("step")
cupy.ndarray(1, np.int32, address).set(np.array([3], np.int32))
for dtype, name in ((np.int32, "raise<int>"), (np.float64, "raise<double>")):
    y = cupy.asarray(np.arange(4, dtype=dtype))
    module.get_function(name)((1,), (4,), (y,))
    assert (y.get() == np.arange(4) + 3).all()
""",
    "`ElementwiseKernel`, `ReductionKernel`, `fuse`, ufuncs, reductions, slices": """
difference = cupy.ElementwiseKernel("T x, T y", "T z", "z = (x - y) * (x - y)", "difference")
x = cupy.arange(12, dtype=np.float32).reshape(3, 4)
assert (difference(x, 5).get() == (x.get() - 5) ** 2).all()
l2norm = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "l2norm")
assert np.allclose(l2norm(x, axis=1).get(), np.linalg.norm(x.get(), axis=1))
@cupy.fuse()
def root(a):
    return cupy.sqrt(a) + a
assert np.allclose(root(x).get(), np.sqrt(x.get()) + x.get())
part = x[1:, ::2]
part += 1
assert float(x.sum()) == 70 and int(x.argmax()) == 10 and x[2].tolist() == [9, 9, 11, 11]
""",
    "`cupyx.jit.rawkernel`, with `grid.sync`": """
from cupyx import jit
@jit.rawkernel()
def copy(x, y, size):
    first = jit.blockIdx.x * jit.blockDim.x + jit.threadIdx.x
    for i in range(first, size, jit.gridDim.x * jit.blockDim.x):
        y[i] = x[i]
x, y = cupy.arange(100, dtype=np.float32), cupy.zeros(100, np.float32)
copy[2, 32](x, y, cupy.uint32(100))
assert (y.get() == np.arange(100)).all()
@jit.rawkernel()
def meet(x):
    grid = jit.cg.this_grid()
    x[jit.blockIdx.x] = 1
    grid.sync()
    if grid.thread_rank() == 0:
        x[2] = x[0] + x[1]
z = cupy.zeros(3, np.int32)
meet[2, 32](z)
assert z.tolist() == [1, 1, 2]
""",
    "streams, events, callbacks, memory pools, pinned and managed memory": """
pool = cupy.get_default_memory_pool()
first, last, called = cupy.cuda.Event(), cupy.cuda.Event(), []
with cupy.cuda.Stream(non_blocking=True) as stream:
    first.record()
    pinned = cupy.cuda.alloc_pinned_memory(64)
    host = np.frombuffer(pinned, np.float32, 16)
    host[:] = 7
    x = cupy.empty(16, np.float32)
    x.set(host)
    stream.launch_host_func(called.append, 1)
    last.record()
stream.synchronize()
assert (x.get() == 7).all() and called == [1] and stream.done and cupy.cuda.get_elapsed_time(first, last) >= 0
assert pool.used_bytes() == 512
del x
pool.free_all_blocks()
assert pool.total_bytes() == 0
cupy.cuda.set_allocator(cupy.cuda.malloc_managed)
y = cupy.asarray(np.arange(8))
assert cupy.cuda.runtime.pointerGetAttributes(y.data.ptr).type == cupy.cuda.runtime.memoryTypeManaged
assert (y[::-1].get() == np.arange(8)[::-1]).all()
y.data.mem.prefetch(stream)
for device in (1, -7):
    try:
        y.data.mem.prefetch(stream, device_id=device)
        raise AssertionError(device)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        assert "cudaErrorInvalidDevice" in str(error)
device = cupy.cuda.Device()
assert device.compute_capability == "90" and device.attributes["MultiProcessorCount"] == 132
assert b"H100" in cupy.cuda.runtime.getDeviceProperties(0)["name"] and 0 < device.mem_info[0] <= device.mem_info[1]
""",
    "textures and surfaces": """
from cupy.cuda import runtime, texture
SOURCE = '''extern "C" {
__global__ void shrink(float* y, cudaTextureObject_t t, int width)
{ int i = threadIdx.x; y[i] = tex2D<float>(t, (i % width + 0.5f) / width, (i / width + 0.5f) / width); }
__global__ void turn(cudaSurfaceObject_t s, int width) {
    int i = threadIdx.x, x = i % width * 4, y = i / width;
    surf2Dwrite(-surf2Dread<float>(s, x, y), s, x, y);
}
}'''
module = cupy.RawModule(code=SOURCE)
image = cupy.random.random((8, 8), dtype=np.float32)
channels = texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
array = texture.CUDAarray(channels, 8, 8, flags=runtime.cudaArraySurfaceLoadStore)
array.copy_from(image)
resource = texture.ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=array)
clamp = (runtime.cudaAddressModeClamp,) * 2
reads = texture.TextureDescriptor(clamp, runtime.cudaFilterModeLinear, normalizedCoords=1)
small = cupy.zeros((4, 4), np.float32)
module.get_function("shrink")((1,), (16,), (small, texture.TextureObject(resource, reads), np.int32(4)))
assert np.allclose(small.get(), image.get().reshape(4, 2, 4, 2).mean((1, 3)))
module.get_function("turn")((1,), (64,), (texture.SurfaceObject(resource), np.int32(8)))
there = np.zeros((8, 8), np.float32)
array.copy_to(there)
assert (there == -image.get()).all()
pitched = texture.ResourceDescriptor(
    runtime.cudaResourceTypePitch2D, arr=image, chDesc=channels, width=8, height=8, pitchInBytes=32)
module.get_function("shrink")((1,), (16,), (small, texture.TextureObject(pitched, reads), np.int32(4)))
assert np.allclose(small.get(), image.get().reshape(4, 2, 4, 2).mean((1, 3)))
layers = texture.CUDAarray(channels, 8, 8, 3, flags=1)  # layered
values = np.arange(192, dtype=np.float32).reshape(3, 8, 8)
layers.copy_from(values)
there = np.zeros_like(values)
layers.copy_to(there, stream=cupy.cuda.Stream())
assert (there == values).all() and (array.width, array.height) == (8, 8)
""",
    "stream capture, and memory of asynchronous pools": """
stream, called = cupy.cuda.Stream(non_blocking=True), []
x = cupy.arange(8, dtype=np.float32)
with stream:
    stream.begin_capture()
    y = x * 2 + 1
    stream.launch_host_func(called.append, 3)
    graph = stream.end_capture()
x += 1
for _ in range(2):
    graph.launch(stream)
assert (y.get() == 2 * np.arange(8) + 3).all() and called == [3, 3]
assert "multiply" in graph.debug_dot_str()
with stream:
    stream.begin_capture()
    for recorded in (lambda: x.reshape(2, 4) @ x.reshape(4, 2), lambda: cupy.sort(x), lambda: x.get()):
        try:
            recorded()
            raise AssertionError(recorded)
        except (NotImplementedError, RuntimeError) as error:
            assert "captur" in str(error), error
    assert stream.is_capturing()
    stream.end_capture()
pool = cupy.cuda.MemoryAsyncPool()
cupy.cuda.set_allocator(pool.malloc)
before = pool.used_bytes()
z = cupy.ones(256, np.float32)
assert pool.used_bytes() - before == 1024 and pool.total_bytes() >= 1024 and float(z.sum()) == 256
pool.set_limit(1 << 20)
assert pool.get_limit() == 1 << 20
del z
assert pool.used_bytes() == before
cupy.cuda.set_allocator(cupy.cuda.malloc_async)
assert (cupy.arange(5) + 1).tolist() == [1, 2, 3, 4, 5]
cupy.cuda.set_allocator()
""",
    "matrix products, random numbers and sorts, by NumPy": """
a, b = (cupy.asarray(np.arange(24, dtype=np.float32).reshape(shape) % 5) for shape in ((4, 6), (6, 4)))
assert (cupy.matmul(a, b).get() == a.get() @ b.get()).all()
assert (cupy.matmul(a.reshape(2, 2, 6), b).get() == a.get().reshape(2, 2, 6) @ b.get()).all()
assert cupy.dot(a[0].astype(complex), 1j * a[1].astype(complex)).get() == 1j * a.get()[0] @ a.get()[1]
assert (a.astype(np.float16) @ b.astype(np.float16)).get().tolist() == (a.get() @ b.get()).tolist()
cupy.random.seed(1)
drawn = cupy.random.normal(3, 1, 10000)
assert abs(float(drawn.mean()) - 3) < 0.05
cupy.random.seed(1)
assert (cupy.random.normal(3, 1, 10000).get() == drawn.get()).all()
generator = cupy.random.default_rng(1)
drawn_again = generator.standard_normal((50, 100), dtype=np.float32)
assert drawn_again.dtype == np.float32 and abs(float(drawn_again.mean())) < 0.05
assert (generator.integers(cupy.arange(1, 4), size=3) < cupy.arange(1, 4)).all()
assert generator.uniform(2, 3, 5, dtype=np.float32).dtype == np.float32
assert (cupy.random.default_rng(1).standard_normal((50, 100), dtype=np.float32) == drawn_again).all()
assert generator.random(out=cupy.zeros(3)).shape == generator.bit_generator.random_raw(3).shape == (3,)
assert sorted(cupy.random.choice(9, 9, replace=False).tolist()) == list(range(9))
assert (cupy.sort(b, axis=0).get() == np.sort(b.get(), axis=0)).all()
assert (cupy.argsort(drawn[:9]).get() == np.argsort(drawn[:9].get())).all()
""",
}


def emulate(tmp_path: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(BEGIN + program)
    command = [sys.executable, "-m", "harness", "emulate", *words, str(script)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_unchanged(name: str, tmp_path: Path) -> None:
    done = emulate(tmp_path, PROGRAMS[name])
    assert done.returncode == 0, done.stderr


def test_the_page_lists_each_program() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "emulate.md").read_text()
    listed = [line.split("|")[2].strip() for line in page.splitlines() if line.startswith("| CuPy |")]
    assert listed == list(PROGRAMS)


ATTEMPT = """
def attempt(call):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
"""

REFUSED = """
attempt(lambda: cupy.linalg.svd(cupy.ones((3, 3))))
attempt(lambda: cupy.fft.fft(cupy.ones(3)))
attempt(lambda: cupy.cuda.runtime.ipcGetMemHandle(0))
attempt(lambda: cupy.cuda.Device(1).use())
attempt(lambda: cupy.cuda.Device(1).compute_capability)
attempt(lambda: cupy.cuda.alloc(1 << 45))
"""


def test_what_needs_machine_code_is_named(tmp_path: Path) -> None:
    done = emulate(tmp_path, ATTEMPT + REFUSED)
    assert done.returncode == 0, done.stderr
    solver, transform, handle, device, capability, memory = done.stdout.splitlines()
    assert solver.startswith("RuntimeError cupy_backends.cuda.libs.cusolver.") and "cupy.asnumpy" in solver
    assert transform.startswith("RuntimeError cupy.cuda.cufft.") and "cuFFT" in transform
    assert handle == "CUDARuntimeError cudaErrorNotSupported: operation not supported"
    assert done.stderr.count("the program called cudaIpcGetMemHandle") == 1
    assert device == capability == "CUDARuntimeError cudaErrorInvalidDevice: invalid device ordinal"
    assert memory.startswith("OutOfMemoryError Out of memory allocating")


WRONG_ADDRESSES = """
host, x = np.zeros(8, np.float32), cupy.zeros(8, np.float32)
runtime = cupy.cuda.runtime
attempt(lambda: runtime.memcpy(x.data.ptr, host.ctypes.data, 4096, runtime.memcpyHostToDevice))
attempt(lambda: runtime.memcpy(x.data.ptr, host.ctypes.data, 32, runtime.memcpyDeviceToDevice))
attempt(lambda: runtime.free(12345))
"""


def test_wrong_addresses_are_errors_of_the_runtime_with_a_line(tmp_path: Path) -> None:
    done = emulate(tmp_path, ATTEMPT + WRONG_ADDRESSES)
    assert done.stdout == "CUDARuntimeError cudaErrorInvalidValue: invalid argument\n" * 3, done.stderr
    assert [line.partition(" 0x")[0] for line in done.stderr.splitlines()] == [
        "emulated GPU: 4,096 bytes at byte offset 0 of allocation-1 are outside of it; it has 512 bytes",
        "emulated GPU: there is no memory at address",
        "emulated GPU: no allocation begins at address",
    ]


FAULT = """
beyond = cupy.RawKernel('''
extern "C" __global__ void f(float* x) {
    x[1000 + threadIdx.x] = 1;
}
''', "f")
try:
    beyond((1,), (32,), (cupy.empty(8, np.float32),))
finally:
    try:
        cupy.cuda.Device().synchronize()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        print(error)
"""


def test_a_fault_is_an_error_of_the_launch_with_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "kernels"))
    done = emulate(tmp_path, FAULT)
    assert done.returncode == 1
    assert (
        "kernel f, " in done.stderr
        and ".cu:3 (PTX line " in done.stderr
        and "out-of-bounds store of 4 bytes at byte offset 4,000" in done.stderr
    )
    assert "CUDADriverError: CUDA_ERROR_ILLEGAL_ADDRESS" in done.stderr
    assert done.stdout == "cudaErrorIllegalAddress: an illegal memory access was encountered\n"


JITIFY = """
warnings.simplefilter("ignore", DeprecationWarning)
SOURCE = '''
#include <type_traits>
template<typename T, typename = typename std::enable_if<std::is_integral<T>::value>::type>
__global__ void raise(T* x) { x[threadIdx.x] += 1; }
'''
module = cupy.RawModule(code=SOURCE, jitify=True, name_expressions=["raise<int>"])
x = cupy.arange(4, dtype=np.int32)
module.get_function("raise<int>")((1,), (4,), (x,))
assert x.tolist() == [1, 2, 3, 4] and not list(pathlib.Path(os.environ["CUPY_CACHE_DIR"]).glob("jitify*"))
"""


def test_headers_for_jitify_are_found_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jitify itself would compile once for each of 300 headers."""
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "kernels"))
    done = emulate(tmp_path, f"import os, pathlib, warnings\n{JITIFY}")
    assert (done.returncode, done.stderr) == (0, "")


REDUCTIONS = """
import cupy._core
x = cupy.asarray(np.arange(8, dtype=np.float32))
for accelerators in ([], ["cub"]):
    cupy._core.set_routine_accelerators(accelerators)
    assert float(x.sum()) == 28 and x.cumsum().get()[-1] == 28
"""


def test_cub_is_not_called(tmp_path: Path) -> None:
    done = emulate(tmp_path, REDUCTIONS)
    assert (done.returncode, done.stderr) == (0, "")


COMPILERS = """
import os
from cupy.cuda import compiler
from harness.gpu.context import gpu_available
os.environ["NVCC"] = "nvcc"
commands = []
compiler._run_cc = lambda command, *rest: commands.append(command)
try:
    compiler.compile_using_nvcc("", code_type="cubin")
except FileNotFoundError:
    pass
assert "--ptx" in commands[0] and "--cubin" not in commands[0]
assert compiler._get_arch_for_options_for_nvrtc() == ("-arch=compute_90", "ptx")
assert cupy.cuda.is_available() and not gpu_available()
"""


def test_compilers_produce_ptx_and_the_harness_sees_no_gpu(tmp_path: Path) -> None:
    done = emulate(tmp_path, COMPILERS)
    assert (done.returncode, done.stderr) == (0, "")
