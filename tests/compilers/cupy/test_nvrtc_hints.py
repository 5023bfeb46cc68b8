"""NVRTC's errors come with a remedy where the usual header is missing."""

from __future__ import annotations

from types import SimpleNamespace

import cupy
import pytest

from harness import Launch
from harness.compilers.cupy import nvrtc
from harness.compilers.cupy.headers import include_directories
from harness.compilers.toolchains import toolchain_of
from harness.support.errors import CompileError

pytestmark = pytest.mark.compiles

KERNEL = 'extern "C" __global__ void k(float* x) { x[0] = VALUE; }'
OPTIONS = ("-arch=sm_90", *(f"-I{folder}" for folder in include_directories()))


def test_infinity_has_a_remedy_that_compiles() -> None:
    with pytest.raises(CompileError, match=r"__int_as_float\(0x7f800000\), or include <math_constants.h>"):
        nvrtc.compile_source(KERNEL.replace("VALUE", "INFINITY"), "k", OPTIONS)
    nvrtc.compile_source(KERNEL.replace("VALUE", "__int_as_float(0x7f800000)"), "k", OPTIONS)
    source = "#include <math_constants.h>\n" + KERNEL.replace("VALUE", "CUDART_INF_F")
    assert "st.global" in nvrtc.compile_source(source, "k", OPTIONS)
    with pytest.raises(CompileError) as other:
        nvrtc.compile_source(KERNEL.replace("VALUE", "nothing"), "k", OPTIONS)
    assert "math_constants" not in str(other.value)


def test_a_gpu_that_is_newer_than_nvrtc_has_a_remedy() -> None:
    kernel = cupy.RawKernel(KERNEL.replace("VALUE", "1.0f"), "k")
    launch = Launch(kernel, grid=(1,), block=(1,), args=("O",))
    with pytest.raises(CompileError, match=r"the GPU is sm_999, and NVRTC supports up to sm_.*SANDBOX_CUDA=13 pip"):
        toolchain_of(kernel).bind(launch, {}, SimpleNamespace(arch="sm_999"))
    nvrtc.require_architecture("sm_90")


def test_an_architecture_that_nvrtc_does_not_know_says_how_to_get_it() -> None:
    with pytest.raises(CompileError, match=r"invalid value for --gpu-architecture.*\n.*SANDBOX_CUDA=12 pip install"):
        nvrtc.compile_source('extern "C" __global__ void none() {}', "none", ("-arch=sm_9999",))
