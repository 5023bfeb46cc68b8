"""RawKernels compile to PTX without a GPU, as CuPy itself would compile them."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import cupy
import pytest
from sample_kernels import ARCH, AXPY, AXPY_ARGS, axpy, buffer, u64

from harness.compilers import compile_kernel
from harness.compilers.cupy.headers import include_directories
from harness.support.errors import CompileError


def test_rawkernel_compiles_to_ptx() -> None:
    compiled = compile_kernel(axpy(), AXPY_ARGS, ARCH)
    assert (compiled.entry, compiled.name, compiled.toolchain.name, compiled.arch) == ("axpy", "axpy", "cupy", ARCH)
    assert ".target sm_90\n" in compiled.ptx
    assert [p.type for p in compiled.parameters] == ["u64", "u64", "f32", "u32"]
    assert compiled.pack(AXPY_ARGS) == (*u64(0x7000, 0x9000), struct.pack("<f", 1.5), struct.pack("<i", 4))


def test_options_are_those_that_cupy_passes() -> None:
    ptx = compile_kernel(axpy(), AXPY_ARGS, ARCH).ptx
    assert ".ftz" in ptx  # CuPy compiles with -ftz=true
    assert "1000" not in ptx
    other = compile_kernel(axpy("-DSCALE=2", "--fmad=false"), AXPY_ARGS, ARCH).ptx
    assert "fma.rn" in ptx
    assert "fma.rn" not in other


@pytest.mark.parametrize(
    "options", [("-arch=sm_75",), ("--gpu-architecture", "compute_75"), ("-lineinfo", "--generate-line-info")]
)
def test_architecture_and_lineinfo_are_ours(options: tuple[str, ...]) -> None:
    assert ".target sm_90\n" in compile_kernel(axpy("-DSCALE=2", *options), AXPY_ARGS, ARCH).ptx


def test_the_register_limit_goes_to_ptxas() -> None:
    for options in (("-maxrregcount=32",), ("--maxrregcount", "32")):
        assert compile_kernel(axpy("-DSCALE=2", *options), AXPY_ARGS, ARCH).max_registers == 32
    assert compile_kernel(axpy(), AXPY_ARGS, ARCH).max_registers is None


def test_every_arch_suffix() -> None:
    assert ".target sm_90a" in compile_kernel(axpy(), AXPY_ARGS, "sm_90a").ptx
    assert ".target sm_80" in compile_kernel(axpy(), AXPY_ARGS, "sm_80").ptx
    with pytest.raises(CompileError, match="gpu-architecture"):
        compile_kernel(axpy(), AXPY_ARGS, "sm_1")


def test_a_mangled_kernel_is_an_error_that_says_how_to_mend_it() -> None:
    kernel = cupy.RawKernel("__global__ void f(float* y) {}", "f")
    with pytest.raises(CompileError, match=r'the source defines _Z1fPf, not f; declare it extern "C"'):
        compile_kernel(kernel, (buffer(1),), ARCH)


def test_a_template_of_a_module_compiles_under_its_mangled_name() -> None:
    # What RawModule.get_function returns on a GPU, made by hand as it needs a driver.
    kernel = cupy.RawKernel("template <class T> __global__ void f(T* y) { y[0] = 1; }", "_Z1fIfEvPT_")
    kernel.__setstate__({**kernel.__getstate__(), "name_expressions": ("f<float>",)})
    assert compile_kernel(kernel, (buffer(1),), ARCH).entry == "_Z1fIfEvPT_"


def test_headers_are_found() -> None:
    code = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    #include <cuda/std/limits>
    #include <cooperative_groups.h>
    #include <cupy/complex.cuh>
    extern "C" __global__ void f(__half* y, __nv_bfloat16* z) {
        y[0] = __float2half(cuda::std::numeric_limits<float>::max());
        z[0] = __float2bfloat16(1.0f);
        cooperative_groups::this_thread_block().sync();
    }
    """
    compiled = compile_kernel(cupy.RawKernel(code, "f"), (buffer(1, dtype="float16"), buffer(1)), ARCH)
    assert "bar.sync" in compiled.ptx or "barrier.sync" in compiled.ptx


def test_the_wheels_alone_have_the_headers() -> None:
    assert any((Path(folder) / "cuda_fp16.h").is_file() for folder in include_directories())


@pytest.mark.parametrize("field", ["jitify", "translate_cucomplex", "file_path"])
def test_what_only_cupy_on_a_gpu_can_do_is_said(field: str) -> None:
    kernel = cupy.RawKernel(AXPY, "axpy")
    kernel.__setstate__({**kernel.__getstate__(), field: "x.ptx" if field == "file_path" else True})
    with pytest.raises(CompileError, match=field):
        compile_kernel(kernel, AXPY_ARGS, ARCH)


def test_importing_the_package_loads_no_compiler() -> None:
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"  # installed packages may load something at every start
        "import harness.compilers, harness.support.cache, harness.compilers.ptxas, harness.compilers.cupy.rawkernel\n"
        "import harness.compilers.numba.dispatcher\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "heavy = {'cupy', 'numba', 'llvmlite', 'cuda', 'numba_cuda'} & loaded\n"
        "sys.exit(f'loads {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[3], check=False
    )
    assert done.returncode == 0, done.stderr
