"""Both backends compile to PTX without a GPU; arguments are laid out as the PTX wants them; nothing stale is reused."""

from __future__ import annotations

import importlib
import math
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cupy
import numpy as np
import pytest
from numba import cuda, float32, int32

from harness import cache as cache_module
from harness.compilers import DevicePointer, compile_kernel, function_identity, numba_kernel, nvrtc
from harness.compilers.headers import include_directories
from harness.compilers.parameters import Parameter, entry_parameters
from harness.compilers.ptxas import Resources, find_ptxas, resources
from harness.errors import CompileError, PlanError

ARCH = "sm_90"
ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache_module.DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(cache_module.LIMIT_VARIABLE, raising=False)


def buffer(*shape: int, dtype: str = "float32", address: int = 0x7000) -> DevicePointer:
    return DevicePointer(address, shape, dtype)


def u64(*values: int) -> list[bytes]:
    return [struct.pack("<Q", value) for value in values]


class Builds:
    """How often the compilers really ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for module, name in ((nvrtc, "compile_source"), (numba_kernel, "_run_numba")):
            monkeypatch.setattr(module, name, self._counting(getattr(module, name)))

    def _counting(self, compiler: Callable[..., str]) -> Callable[..., str]:
        def compile_counted(*args: Any, **options: Any) -> str:
            self.count += 1
            return compiler(*args, **options)

        return compile_counted


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    return Builds(monkeypatch)


# RawKernel


AXPY = r"""
extern "C" __global__ void axpy(float* y, const float* x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i] * SCALE;
}
"""


def axpy(*options: str) -> Any:
    return cupy.RawKernel(AXPY, "axpy", options or ("-DSCALE=2",))


AXPY_ARGS = (buffer(4), buffer(4, address=0x9000), np.float32(1.5), np.int32(4))


def test_rawkernel_compiles_to_ptx() -> None:
    compiled = compile_kernel(axpy(), AXPY_ARGS, ARCH)
    assert (compiled.entry, compiled.name, compiled.backend, compiled.arch) == ("axpy", "axpy", "cupy", ARCH)
    assert ".target sm_90\n" in compiled.ptx
    assert [p.type for p in compiled.parameters] == ["u64", "u64", "f32", "u32"]
    assert compiled.pack(AXPY_ARGS) == (*u64(0x7000, 0x9000), struct.pack("<f", 1.5), struct.pack("<i", 4))


def test_line_table_names_the_users_file_and_line() -> None:
    compiled = compile_kernel(axpy(), AXPY_ARGS, ARCH)
    lines = Path(__file__).read_text().splitlines()
    wanted = 1 + next(i for i, line in enumerate(lines) if "y[i] += a * x[i] * SCALE" in line)
    assert f'.file\t1 "{__file__}"' in compiled.ptx
    assert re.search(rf"\.loc\s+1 {wanted} ", compiled.ptx)


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


def test_compile_error_carries_the_log_with_the_users_line() -> None:
    code = r"""
    extern "C" __global__ void broken(float* y) {
        y[0] = undeclared_here;
    }
    """
    kernel = cupy.RawKernel(code, "broken")
    line = 1 + next(
        i for i, text in enumerate(Path(__file__).read_text().splitlines()) if "y[0] = undeclared_here;" in text
    )
    with pytest.raises(CompileError) as caught:
        compile_kernel(kernel, (buffer(1),), ARCH)
    assert 'identifier "undeclared_here" is undefined' in str(caught.value)
    assert f"{__file__}({line}): error" in str(caught.value)


def test_a_source_that_is_in_no_file_keeps_its_own_lines() -> None:
    code = "\n".join(["", 'extern "C" __global__ void broken(float* y) {', "    y[0] = " + "not" + "_there;", "}"])
    with pytest.raises(CompileError, match=r"broken\.cu\(3\): error"):
        compile_kernel(cupy.RawKernel(code, "broken"), (buffer(1),), ARCH)


def test_a_cuda_file_beside_the_module_is_named_in_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernel.cu").write_text('// a comment\nextern "C" __global__ void f(float* y) {\n    y[0] = oops;\n}\n')
    (tmp_path / "module_beside_kernel.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("module_beside_kernel")
    try:
        kernel = cupy.RawKernel("#define N 3\n" + (tmp_path / "kernel.cu").read_text(), "f")
        with pytest.raises(CompileError, match=re.escape(f"{tmp_path}/kernel.cu(3): error")):
            compile_kernel(kernel, (buffer(1),), ARCH)
    finally:
        del sys.modules["module_beside_kernel"]


def test_a_users_own_line_directive_stands() -> None:
    code = r"""#line 70 "mine.cu"
    extern "C" __global__ void f(float* y) { y[0] = oops; }
    """
    with pytest.raises(CompileError, match=r"mine\.cu\(70\): error"):
        compile_kernel(cupy.RawKernel(code, "f"), (buffer(1),), ARCH)


def test_a_mangled_kernel_is_an_error_that_says_how_to_mend_it() -> None:
    kernel = cupy.RawKernel("__global__ void f(float* y) {}", "f")
    with pytest.raises(CompileError, match=r'_Z1fPf; declare it extern "C"'):
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


# Arguments of a RawKernel


RECORD = np.dtype([("a", "i4"), ("b", "f8")], align=True)
MANY = r"""
#include <cuda_fp16.h>
struct Record { int a; double b; };
extern "C" __global__ void many(
    float* p, signed char c, short s, unsigned u, long long l, __half h, float f, double d, bool b, Record r, float2 z,
    double2 w
) { p[0] = c + s + u + l + __half2float(h) + f + d + b + r.b + z.x + w.y; }
"""


def many_args() -> tuple[Any, ...]:
    record = np.zeros((), RECORD)
    record["a"], record["b"] = 7, 2.5
    return (
        buffer(2, 3),
        np.int8(-1),
        np.int16(-2),
        np.uint32(3),
        np.int64(-4),
        np.float16(0.5),
        np.float32(0.25),
        np.float64(0.125),
        True,
        record[()],
        np.complex64(1 + 2j),
        np.complex128(3 + 4j),
    )


def test_each_scalar_becomes_its_bytes() -> None:
    compiled = compile_kernel(cupy.RawKernel(MANY, "many"), many_args(), ARCH)
    packed = compiled.pack(many_args())
    assert packed == (
        struct.pack("<Q", 0x7000),
        struct.pack("<b", -1),
        struct.pack("<h", -2),
        struct.pack("<I", 3),
        struct.pack("<q", -4),
        struct.pack("<e", 0.5),
        struct.pack("<f", 0.25),
        struct.pack("<d", 0.125),
        b"\1",
        struct.pack("<i4xd", 7, 2.5),
        struct.pack("<2f", 1, 2),
        struct.pack("<2d", 3, 4),
    )
    assert tuple(map(len, packed)) == tuple(p.size_bytes for p in compiled.parameters)


@pytest.mark.parametrize(
    ("position", "given", "wanted"),
    [
        (3, 5, struct.pack("<I", 5)),  # CuPy passes an int64; the driver reads the four bytes that there are
        (3, 2**32 - 1, b"\xff" * 4),
        (2, -3, struct.pack("<h", -3)),
        (3, np.int64(6), struct.pack("<I", 6)),
        (4, 2**63, struct.pack("<Q", 2**63)),
        (7, 1.5, struct.pack("<d", 1.5)),
        (8, np.bool_(False), b"\0"),
        (11, 1j, struct.pack("<2d", 0, 1)),
        (0, None, bytes(8)),
        (5, np.array([0.5], np.float16), struct.pack("<e", 0.5)),
    ],
)
def test_scalars_as_cupy_passes_them(position: int, given: Any, wanted: bytes) -> None:
    args = many_args()
    compiled = compile_kernel(cupy.RawKernel(MANY, "many"), args, ARCH)
    assert compiled.pack((*args[:position], given, *args[position + 1 :]))[position] == wanted


@pytest.mark.parametrize(
    ("position", "given", "message"),
    [
        (6, 1.0, r"argument 7 is float64 \(8 bytes\).*float32 \(4 bytes\); write np\.float32\(x\)"),
        (6, 1, r"argument 7 is the int 1.*write np\.float32"),
        (6, np.int32(1), r"argument 7 is int32.*write np\.float32"),
        (3, np.float32(1), r"argument 4 is float32.*write np\.int32"),
        (3, 2**32, "argument 4 is the int 4294967296.*too narrow"),
        (1, 200 + 100, "argument 2 is the int 300.*too narrow"),
        (4, np.int32(1), r"argument 5 is int32 \(4 bytes\)"),
        (3, buffer(2), r"argument 4 is a buffer of float32\(2,\)"),
        (3, "K", "argument 4 is a str"),
        (3, np.zeros(3, np.int32), "argument 4 is a ndarray"),
        (9, np.zeros(1, "V12"), r"\(12 bytes\).*16-byte value"),
        (9, 5, "argument 10 is the int 5"),
        (3, True, r"argument 4 is bool \(1 bytes\).*write np\.int32"),
    ],
)
def test_what_would_arrive_as_garbage_is_a_plan_error(position: int, given: Any, message: str) -> None:
    args = many_args()
    compiled = compile_kernel(cupy.RawKernel(MANY, "many"), args, ARCH)
    with pytest.raises(PlanError, match=message):
        compiled.pack((*args[:position], given, *args[position + 1 :]))


def test_a_wrong_number_of_arguments_says_what_the_kernel_wants() -> None:
    compiled = compile_kernel(axpy(), AXPY_ARGS, ARCH)
    with pytest.raises(PlanError, match=r"axpy takes 4 arguments \(pointer .* float32, int32 .*\), but it is given 3"):
        compiled.pack(AXPY_ARGS[:3])


def test_a_kernel_without_parameters() -> None:
    compiled = compile_kernel(cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing"), (), ARCH)
    assert compiled.pack(()) == ()


def test_parameters_are_read_from_any_spelling() -> None:
    text = """
    .visible .entry _Z1fPf(
        .param .u64 .ptr .global .align 16 a,
        .param .align 4 .b8 b[12],
        .param .f32 c
    ) .maxntid 128, 1, 1 { ret; }
    .weak .entry g() { ret; }
    .entry h
    { ret; }
    """
    assert entry_parameters(text) == {
        "_Z1fPf": (Parameter("u64", 8, 8), Parameter("b8", 12, 4, is_array=True), Parameter("f32", 4, 4)),
        "g": (),
        "h": (),
    }


# Numba


@cuda.jit(device=True)
def twice(x: Any) -> Any:
    return x * np.float32(2)


@cuda.jit
def staged(y, x, a, n):  # type: ignore[no-untyped-def]
    tile = cuda.shared.array((4, 8), float32)
    other = cuda.shared.array((4, 8), float32)
    i = cuda.grid(1)
    if i < n:
        tile[0, cuda.threadIdx.x] = x[i, 0]
        other[1, cuda.threadIdx.x] = twice(x[i, 1])
    cuda.syncthreads()
    if i < n:
        y[i] = a * tile[0, cuda.threadIdx.x] + math.exp(other[1, 0])


STAGED_ARGS = (buffer(5), buffer(5, 2, address=0x9000), np.float32(0.5), np.int32(5))


def line_of(text: str) -> int:
    return 1 + next(i for i, line in enumerate(Path(__file__).read_text().splitlines()) if text in line)


def test_numba_compiles_to_ptx() -> None:
    compiled = compile_kernel(staged, STAGED_ARGS, ARCH)
    assert (compiled.name, compiled.backend, compiled.arch) == ("staged", "numba", ARCH)
    assert f".entry {compiled.entry}(" in compiled.ptx
    assert compiled.signature == ("array(float32, 1d, C)", "array(float32, 2d, C)", "float32", "int32")
    assert len(compiled.parameters) == 7 + 9 + 1 + 1
    assert len(re.findall(r"\.shared .*\[128\]", compiled.ptx)) == 2


def test_numba_line_table_names_the_users_lines_inside_of_device_functions_too() -> None:
    ptx = compile_kernel(staged, STAGED_ARGS, ARCH).ptx
    assert f'"{__file__}"' in ptx
    for text in ("tile[0, cuda.threadIdx.x] = x[i, 0]", "    return x * np.float32(2)"):
        assert re.search(rf"\.loc\s+\d+ {line_of(text)} ", ptx), text


def test_numba_arrays_are_flattened_as_a_native_launch_does_it() -> None:
    compiled = compile_kernel(staged, STAGED_ARGS, ARCH)
    assert compiled.pack(STAGED_ARGS) == (
        *u64(0, 0, 5, 4, 0x7000, 5, 4),
        *u64(0, 0, 10, 4, 0x9000, 5, 2, 8, 4),
        struct.pack("<f", 0.5),
        struct.pack("<i", 5),
    )


@cuda.jit
def loads_words(y, x):  # type: ignore[no-untyped-def]
    y[0] = x.size
    y[1] = x.itemsize
    y[2] = x.shape[0]
    y[3] = x.shape[1]
    y[4] = x.strides[0]
    y[5] = x.strides[1]


def test_the_ptx_agrees_on_which_word_is_which() -> None:
    """The stored fields come from the parameters that `pack` fills with them."""
    args = (buffer(6, dtype="int64"), buffer(3, 5, dtype="float16"))
    compiled = compile_kernel(loads_words, args, ARCH)
    words = compiled.pack(args)
    loaded = dict(re.findall(r"ld\.param\.u64\s+(%rd\d+), \[\w+_param_(\d+)\]", compiled.ptx))
    stored = re.findall(r"st\.global\.u64\s+\[(%rd\d+)(?:\+(\d+))?\], (%rd\d+)", compiled.ptx)
    values = {
        int(offset or 0) // 8: int.from_bytes(words[int(loaded[register])], "little")
        for _, offset, register in stored
        if register in loaded
    }
    assert values == {0: 15, 1: 2, 2: 3, 3: 5, 4: 10, 5: 2}


@cuda.jit
def takes_scalars(y, a, b, c, d, e, f):  # type: ignore[no-untyped-def]
    if a:
        y[0] = b + c.real + d[0] * d[1][1] + np.float32(e) + f


def test_numba_scalars_tuples_and_complex() -> None:
    args = (buffer(1), True, 2.0, np.complex64(1 + 2j), (3, (np.int8(4), 5.0)), np.float16(0.5), 2**40)
    compiled = compile_kernel(takes_scalars, args, ARCH)
    assert compiled.signature[1:] == (
        "bool",
        "float64",
        "complex64",
        "Tuple(int64, Tuple(int8, float64))",
        "float16",
        "int64",
    )
    packed = compiled.pack(args)
    assert packed[7:] == (
        b"\1",
        struct.pack("<d", 2),
        struct.pack("<f", 1),
        struct.pack("<f", 2),
        struct.pack("<q", 3),
        struct.pack("<b", 4),
        struct.pack("<d", 5),
        struct.pack("<e", 0.5),
        struct.pack("<q", 2**40),
    )
    assert tuple(map(len, packed)) == tuple(p.size_bytes for p in compiled.parameters)


@cuda.jit
def copies(y, x):  # type: ignore[no-untyped-def]
    y[0, 0, 0, 0] = x[0, 0, 0, 0]


@pytest.mark.parametrize(
    ("dtype", "numba_type", "item_bytes"),
    [
        ("bfloat16", "uint16", 2),
        ("float16", "float16", 2),
        ("float64", "float64", 8),
        ("int32", "int32", 4),
        ("uint8", "uint8", 1),
    ],
)
def test_numba_buffers_of_every_dtype(dtype: str, numba_type: str, item_bytes: int) -> None:
    args = (buffer(1, 1, 1, 1, dtype=dtype), buffer(2, 1, 0, 3, dtype=dtype))
    compiled = compile_kernel(copies, args, ARCH)
    assert compiled.signature == (f"array({numba_type}, 4d, C)",) * 2
    strides = (0, 0, 3 * item_bytes, item_bytes)
    assert compiled.pack(args)[13:] == tuple(u64(0, 0, 0, item_bytes, 0x7000, 2, 1, 0, 3, *strides))


def test_types_are_those_of_a_native_launch() -> None:
    device_array = cuda.types.Array(cuda.types.float32, 1, "C")
    assert compile_kernel(staged, STAGED_ARGS, ARCH).signature[0] == str(device_array)
    assert device_array.mutable
    assert device_array.aligned


def test_dispatcher_options_are_honoured() -> None:
    def divides(y, a):  # type: ignore[no-untyped-def]
        y[0] = a / y[1]

    args = (buffer(2), np.float32(1))
    exact = compile_kernel(cuda.jit(divides), args, ARCH).ptx
    fast = compile_kernel(cuda.jit(fastmath=True)(divides), args, ARCH).ptx
    assert "div.rn.f32" in exact
    assert "div.approx" in fast
    bounded = compile_kernel(cuda.jit(launch_bounds=(96, 2))(divides), args, ARCH).ptx
    assert re.search(r"\.maxntid\s+96", bounded)
    unoptimised = compile_kernel(cuda.jit(opt=False)(divides), args, ARCH).ptx
    assert len(unoptimised) > 1.5 * len(exact)
    assert compile_kernel(cuda.jit(max_registers=24)(divides), args, ARCH).max_registers == 24


def test_numba_errors_carry_numbas_message_and_the_users_line() -> None:
    @cuda.jit
    def untypable(y):  # type: ignore[no-untyped-def]
        y[0] = y.no_such_attribute

    with pytest.raises(CompileError) as caught:
        compile_kernel(untypable, (buffer(1),), ARCH)
    message = str(caught.value)
    assert "no_such_attribute" in message
    assert __file__ in message
    assert f"line {line_of('y[0] = y.no_such_attribute')}" in message
    assert "\x1b" not in message


def test_colours_are_taken_out_of_numbas_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("\x1b[1m\x1b[31mred\x1b[0m and plain")

    monkeypatch.setattr(cuda, "compile_ptx", fail)
    with pytest.raises(CompileError, match=r"(?m)^red and plain$"):
        compile_kernel(cuda.jit(staged.py_func), STAGED_ARGS, ARCH)


def test_numba_argument_count_is_a_plan_error() -> None:
    with pytest.raises(PlanError, match=r"staged takes 4 arguments \(y, x, a, n\), but it is given 3"):
        compile_kernel(staged, STAGED_ARGS[:3], ARCH)
    compiled = compile_kernel(staged, STAGED_ARGS, ARCH)
    with pytest.raises(PlanError, match=r"staged takes 4 arguments \(array.*\), but it is given 3"):
        compiled.pack(STAGED_ARGS[:3])


@pytest.mark.parametrize(
    ("position", "given", "message"),
    [
        (3, 5, "compiled for int32 as argument 4, but it is given int64"),
        (2, np.float64(1), "compiled for float32 as argument 3, but it is given float64"),
        (1, buffer(5), "argument 2, but it is given array"),
        (1, "K", "argument 2"),
    ],
)
def test_numba_arguments_of_another_type_are_a_plan_error(position: int, given: Any, message: str) -> None:
    compiled = compile_kernel(staged, STAGED_ARGS, ARCH)
    with pytest.raises(PlanError, match=message):
        compiled.pack((*STAGED_ARGS[:position], given, *STAGED_ARGS[position + 1 :]))


def test_what_cannot_be_honoured_is_said() -> None:
    def body(y):  # type: ignore[no-untyped-def]
        y[0] = 1

    with pytest.raises(CompileError, match=r"links helper\.cu"):
        compile_kernel(cuda.jit(link=["helper.cu"])(body), (buffer(1),), ARCH)
    with pytest.raises(CompileError, match="extensions="):
        compile_kernel(cuda.jit(extensions=[object()])(body), (buffer(1),), ARCH)
    with pytest.raises(PlanError, match="device function"):
        compile_kernel(twice, (np.float32(1),), ARCH)
    with pytest.raises(PlanError, match=r"kernel body is a function; it has to be a cupy\.RawKernel or"):
        compile_kernel(body, (buffer(1),), ARCH)


def test_a_foreign_function_is_said_to_be_missing() -> None:
    foreign = cuda.declare_device("foreign", "float32(float32)")

    @cuda.jit
    def calls(y):  # type: ignore[no-untyped-def]
        y[0] = foreign(y[1])

    with pytest.raises(CompileError, match="calls foreign, which would have to be linked"):
        compile_kernel(calls, (buffer(2),), ARCH)


# The cache


def test_a_rawkernel_is_compiled_once(builds: Builds) -> None:
    first = compile_kernel(axpy(), AXPY_ARGS, ARCH)
    assert compile_kernel(axpy(), AXPY_ARGS, ARCH) == first
    assert builds.count == 1
    for kernel, arch in (
        (axpy("-DSCALE=3"), ARCH),
        (axpy(), "sm_80"),
        (cupy.RawKernel(AXPY.replace("+=", "-="), "axpy", ("-DSCALE=2",)), ARCH),
    ):
        before = builds.count
        compile_kernel(kernel, AXPY_ARGS, arch)
        assert builds.count == before + 1


def test_a_changed_header_is_noticed(tmp_path: Path, builds: Builds) -> None:
    (tmp_path / "outer.h").write_text('#include "inner.h"\n')
    (tmp_path / "inner.h").write_text("#define FACTOR 111.0f\n")
    code = '#include "outer.h"\nextern "C" __global__ void f(float* y) { y[0] *= FACTOR; }'
    kernel = cupy.RawKernel(code, "f", (f"-I{tmp_path}",))
    first = compile_kernel(kernel, (buffer(1),), ARCH)
    assert compile_kernel(kernel, (buffer(1),), ARCH) == first
    assert builds.count == 1
    (tmp_path / "inner.h").write_text("#define FACTOR 222.0f\n")
    assert compile_kernel(kernel, (buffer(1),), ARCH).ptx != first.ptx


def test_a_header_behind_a_macro_is_never_cached(tmp_path: Path, builds: Builds) -> None:
    (tmp_path / "h.h").write_text("")
    code = '#define H "h.h"\n#include H\nextern "C" __global__ void f(float* y) {}'
    for _ in range(2):
        compile_kernel(cupy.RawKernel(code, "f", ("-I", str(tmp_path))), (buffer(1),), ARCH)
    assert builds.count == 2


def test_a_corrupted_entry_is_compiled_again(builds: Builds, tmp_path: Path) -> None:
    first = compile_kernel(axpy(), AXPY_ARGS, ARCH)
    (entry,) = (tmp_path / "cache").iterdir()
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    assert compile_kernel(axpy(), AXPY_ARGS, ARCH) == first
    assert builds.count == 2


SCALE_FACTOR = 2
TABLE = np.arange(3, dtype=np.float32)


def make(constant: Any, global_constant: int = 2) -> Any:
    global SCALE_FACTOR
    SCALE_FACTOR = global_constant

    @cuda.jit(device=True)
    def inner(x):  # type: ignore[no-untyped-def]
        return x * constant

    @cuda.jit
    def outer(y):  # type: ignore[no-untyped-def]
        y[0] = inner(y[1]) + SCALE_FACTOR

    return outer


def test_a_numba_kernel_is_compiled_once_even_when_made_anew(builds: Builds) -> None:
    first = compile_kernel(make(3), (buffer(2),), ARCH)
    assert compile_kernel(make(3), (buffer(2),), ARCH).ptx == first.ptx
    assert builds.count == 1


def test_a_numba_kernels_entry_depends_on_all_that_it_refers_to(builds: Builds) -> None:
    seen = set()
    for number, kernel in enumerate(
        [make(3), make(4), make(3.0), make(np.float32(3)), make(np.float64(3)), make(3, global_constant=5)], start=1
    ):
        if number == 6:
            make(3, global_constant=5)
        else:
            make(3)
        seen.add(compile_kernel(kernel, (buffer(2),), ARCH).ptx)
        assert builds.count == number
    assert len(seen) >= 4
    compile_kernel(make(3), (buffer(2, dtype="float64"),), ARCH)
    assert builds.count == 7
    assert ".target sm_80" in compile_kernel(make(3), (buffer(2),), "sm_80").ptx
    assert builds.count == 8


def identity(function: Any) -> str:
    text = function_identity.function_identity(cuda.jit(function))
    assert text is not None
    return text


def test_a_moved_line_is_another_identity() -> None:
    code = "def f(y):\n    y[0] = 1\n"
    spaces: list[dict[str, Any]] = [{}, {}]
    exec(compile(code, "a.py", "exec"), spaces[0])
    exec(compile("\n" + code, "a.py", "exec"), spaces[1])
    assert identity(spaces[0]["f"]) != identity(spaces[1]["f"])


def test_a_changed_constant_is_another_identity() -> None:
    spaces: list[dict[str, Any]] = [{}, {}]
    for space, number in zip(spaces, ("1.5", "2.5")):
        exec(compile(f"def f(y):\n    y[0] = {number}\n", "a.py", "exec"), space)
    assert identity(spaces[0]["f"]) != identity(spaces[1]["f"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (np.float32(1), np.float64(1)),
        ((1, 2), (1, 3)),
        ((1, (2,)), (1, 2)),
        (np.dtype("f4"), np.dtype("f8")),
        (float32, int32),
        (np.zeros(2), np.ones(2)),
        (twice, staged),
        ("a", b"a"),
        (None, 0),
    ],
)
def test_closure_values_are_told_apart(one: Any, other: Any) -> None:
    def closing_over(value: Any) -> Any:
        def f(y):  # type: ignore[no-untyped-def]
            y[0] = value

        return f

    assert identity(closing_over(one)) != identity(closing_over(other))
    assert identity(closing_over(one)) == identity(closing_over(one))


def test_a_constant_of_a_users_module_is_part_of_the_identity() -> None:
    module = ModuleType("my_constants")
    module.TILE = 16  # type: ignore[attr-defined]

    def f(y):  # type: ignore[no-untyped-def]
        y[0] = module.TILE

    first = identity(f)
    module.UNRELATED = 1  # type: ignore[attr-defined]
    assert identity(f) == first
    module.TILE = 32  # type: ignore[attr-defined]
    assert identity(f) != first


def test_what_is_not_understood_is_not_cached(builds: Builds) -> None:
    def plain(x: Any) -> Any:  # may stand for an overload that is registered elsewhere
        return x

    for value in (object(), plain, [1], {"a": 1}):

        def f(y):  # type: ignore[no-untyped-def]
            y[0] = value  # noqa: B023

        assert function_identity.function_identity(cuda.jit(f)) is None


def test_functions_that_call_each_other_end(builds: Builds) -> None:
    @cuda.jit(device=True)
    def down(n):  # type: ignore[no-untyped-def]
        return down(n - 1) if n > 0 else 0

    def f(y):  # type: ignore[no-untyped-def]
        y[0] = down(3)

    assert identity(f) == identity(f)


def test_names_imported_from_numba_are_understood() -> None:
    from numba.cuda import grid, shared, syncthreads, threadIdx

    def f(y):  # type: ignore[no-untyped-def]
        tile = shared.array(4, float32)
        tile[threadIdx.x] = y[grid(1)]
        syncthreads()
        y[0] = tile[0]

    assert identity(f) == identity(f)


# ptxas


def test_ptxas_reports_resources() -> None:
    code = """
    extern "C" __global__ void heavy(volatile float* y, int n) {
        __shared__ float tile[100];
        float x[64];
        for (int i = 0; i < 64; ++i) x[i] = y[i * 7 + threadIdx.x];
        for (int k = 0; k < n; ++k) for (int i = 0; i < 64; ++i) x[i] = x[i] * x[(i + 1) % 64] + k;
        float s = 0; for (int i = 0; i < 64; ++i) s += x[i];
        tile[n] = s; __syncthreads(); y[0] = tile[n + 1];
    }
    extern "C" __global__ void light(float* y) { y[0] = 1; }
    """
    compiled = compile_kernel(cupy.RawKernel(code, "heavy"), (buffer(1), 1), ARCH)
    free = resources(compiled.ptx, ARCH, "heavy")
    light = resources(compiled.ptx, ARCH, "light")
    tight = resources(compiled.ptx, ARCH, "heavy", max_registers=32)
    if free is None or light is None or tight is None:
        pytest.skip("no ptxas is installed that reads this PTX")
    assert free.shared_bytes == 400
    assert light.shared_bytes == 0
    assert (free.spill_load_bytes, free.spill_store_bytes) == (0, 0)
    assert light.registers < 32 < free.registers
    assert tight.registers <= 32
    assert tight.spill_load_bytes > 0
    assert tight.stack_bytes > 0


def test_ptxas_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ptx = compile_kernel(axpy(), AXPY_ARGS, ARCH).ptx
    first = resources(ptx, ARCH, "axpy")
    if first is None:
        pytest.skip("no ptxas is installed that reads this PTX")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("ran again")

    monkeypatch.setattr(subprocess, "run", never)
    assert resources(ptx, ARCH, "axpy") == first


def test_ptxas_rejection_is_shown() -> None:
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    with pytest.raises(CompileError, match=r"(?s)ptxas rejects.*kernel\.ptx.*Missing \.version"):
        resources("garbage", ARCH, "axpy")


def test_a_ptxas_that_is_older_than_the_ptx_knows_nothing() -> None:
    ptx = compile_kernel(axpy(), AXPY_ARGS, ARCH).ptx
    assert resources(re.sub(r"\.version \d+\.\d+", ".version 99.0", ptx), ARCH, "axpy") is None


def test_without_ptxas_resources_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.compilers import ptxas

    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)
    assert resources("anything", ARCH, "axpy") is None


def test_resources_are_read_from_older_reports() -> None:
    from harness.compilers.ptxas import _parse

    log = """ptxas info    : Compiling entry function 'other' for 'sm_80'
ptxas info    : Function properties for other
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 10 registers, 24 bytes cumulative stack size, 352 bytes cmem[0]
ptxas info    : Compiling entry function 'f' for 'sm_80'
ptxas info    : Function properties for f
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 400 bytes smem, 352 bytes cmem[0], 8 bytes cmem[2]
"""
    assert _parse(log, "f") == Resources(255, 12, 20, 400, 16, 360)
    assert _parse(log, "other") == Resources(10, 4, 4, 0, 24, 352)


# Imports


def test_importing_the_package_loads_no_compiler() -> None:
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"  # installed packages may load something at every start
        "import harness.compilers, harness.cache, harness.compilers.ptxas, harness.compilers.rawkernel\n"
        "import harness.compilers.numba_kernel\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "heavy = {'cupy', 'numba', 'llvmlite', 'cuda', 'numba_cuda'} & loaded\n"
        "sys.exit(f'loads {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
