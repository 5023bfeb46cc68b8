"""On a GPU: what `pack` lays out is what CuPy and Numba themselves pass, and Numba gives arguments the same types."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import pytest
from numba import cuda

from harness.compilers import DevicePointer, compile_kernel
from harness.compilers.c_arguments import structs_by_value


def has_gpu() -> bool:
    try:
        return bool(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


pytestmark = pytest.mark.skipif(not has_gpu(), reason="needs a GPU")

ARCH = "sm_90"
RECORD = np.dtype([("a", "i4"), ("b", "f8")], align=True)
# Stores the bytes of every parameter, in order.
SOURCE = r"""
#include <cuda_fp16.h>
struct Record { int a; double b; };
template <class T> __device__ void keep(unsigned char*& out, T value) {
    for (int i = 0; i < sizeof(T); ++i) *out++ = reinterpret_cast<unsigned char*>(&value)[i];
}
extern "C" __global__ void many(
    unsigned char* out, float* p, signed char c, short s, unsigned u, long long l, __half h, float f, double d, bool b,
    Record r, float2 z, double2 w
) {
    keep(out, p); keep(out, c); keep(out, s); keep(out, u); keep(out, l); keep(out, h); keep(out, f); keep(out, d);
    keep(out, b); keep(out, r); keep(out, z); keep(out, w);
}
"""


def record() -> Any:
    value = np.zeros((), RECORD)
    value["a"], value["b"] = 7, 2.5
    return value[()]


SCALARS: tuple[tuple[Any, ...], ...] = (
    (
        *(np.int8(-1), np.int16(-2), np.uint32(3), np.int64(-4), np.float16(0.5), np.float32(0.25), np.float64(0.125)),
        *(True, record(), np.complex64(1 + 2j), np.complex128(3 + 4j)),
    ),
    # Python's own numbers, and integers that are wider than their parameter.
    (-1, np.int64(-2), 2**32 - 1, 2**63, np.float16(0.5), np.float32(0.25), 1.5, False, record(), np.complex64(1j), 2j),
)


@pytest.mark.parametrize("scalars", SCALARS)
def test_rawkernel_parameters_are_those_of_cupy(scalars: tuple[Any, ...]) -> None:
    kernel = cupy.RawKernel(SOURCE, "many")
    out, p = cupy.zeros(256, cupy.uint8), cupy.zeros(1, cupy.float32)
    kernel((1,), (1,), (out, p, *scalars))
    args = (
        DevicePointer(out.data.ptr, out.shape, "uint8"),
        DevicePointer(p.data.ptr, p.shape, "float32"),
        *scalars,
    )
    wanted = b"".join(compile_kernel(kernel, args, ARCH).pack(args)[1:])
    assert out.get().tobytes()[: len(wanted)] == wanted


STRUCTS = r"""
struct Empty {};
struct Inner { const float* x; short n; };
struct Outer { signed char a; Inner inner; Empty none; float b; };
extern "C" __global__ void adds(float* out, Empty empty, Outer outer) {
    out[0] = outer.a + outer.inner.x[1] + outer.inner.n + outer.b;
}
"""


def test_a_tuple_reaches_a_rawkernel_as_a_struct() -> None:
    out, x = cupy.zeros(1, cupy.float32), cupy.arange(2, dtype=cupy.float32)
    outer = np.int8(-3), (x, np.int16(7)), (), np.float32(0.5)
    cupy.RawKernel(STRUCTS, "adds")((1,), (1,), structs_by_value("adds", (out, (), outer)))
    assert out.get()[0] == -3 + 1 + 7 + 0.5


@cuda.jit
def keeps(out, x, flag, number, half, part, pair):  # type: ignore[no-untyped-def]
    out[0] = x.size
    out[1] = x.itemsize
    out[2] = x.shape[0]
    out[3] = x.shape[1]
    out[4] = x.strides[0]
    out[5] = x.strides[1]
    out[6] = number if flag else 0
    out[7] = half
    out[8] = part.real + part.imag
    out[9] = pair[0] + pair[1]


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint16", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (1, 4)])
def test_numba_types_are_those_of_a_native_launch(dtype: str, shape: tuple[int, int]) -> None:
    scalars = (True, 2**40, np.float16(0.5), np.complex64(1 + 2j), (3, 4.5))
    out, x = cupy.zeros(10, cupy.float64), cupy.zeros(shape, dtype)
    kernel = cuda.jit(keeps.py_func)
    kernel[1, 1](out, x, *scalars)
    (native,) = kernel.overloads
    name = "bfloat16" if dtype == "uint16" else dtype
    args = (DevicePointer(out.data.ptr, (10,), "float64"), DevicePointer(x.data.ptr, shape, name), *scalars)
    compiled = compile_kernel(keeps, args, ARCH)
    assert compiled.signature == tuple(str(numba_type) for numba_type in native)
    words = compiled.pack(args)
    fields = [int.from_bytes(word, "little") for word in words[9:16]]
    size, item_bytes, address, *extents = fields[0], fields[1], fields[2], *fields[3:]
    assert address == x.data.ptr
    strides = [int.from_bytes(word, "little") for word in words[14:16]]
    got = out.get()
    assert got[:4].tolist() == [size, item_bytes, *extents[:2]]
    assert got[4:6].tolist() == strides
    assert got[6:].tolist() == [2**40, 0.5, 3.0, 7.5]
