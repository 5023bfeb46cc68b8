"""The arguments of a RawKernel become the bytes that CuPy would pass; garbage is refused."""

from __future__ import annotations

import struct
from typing import Any

import cupy
import numpy as np
import pytest
from sample_kernels import ARCH, AXPY_ARGS, axpy, buffer

from harness.compilers import compile_kernel
from harness.support.errors import PlanError

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


STRUCTS = r"""
struct Empty {};
struct Pair { signed char before; int after; };
struct Rule { const float* keys; short rows; };
struct Nested { unsigned char first; Rule rule; Empty none; float last; };
extern "C" __global__ void structs(float* out, Empty empty, Pair pair, Nested nested) {
    out[0] = pair.before + pair.after + nested.first + nested.rule.keys[1] + nested.rule.rows + nested.last;
}
"""
PAIR = (np.int8(-1), np.int32(2))
NESTED = (np.uint8(3), (buffer(4), np.int16(5)), (), np.float32(0.5))


def structs_kernel() -> Any:
    return cupy.RawKernel(STRUCTS, "structs")


def test_a_tuple_is_a_struct_by_value() -> None:
    args = (buffer(1), (), PAIR, NESTED)
    packed = compile_kernel(structs_kernel(), args, ARCH).pack(args)
    assert packed[1:] == (
        b"\0",
        struct.pack("<b3xi", -1, 2),
        struct.pack("<B7xQh6xB3xf", 3, 0x7000, 5, 0, 0.5),
    )


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((np.int8(-1),), r"argument 3 is a tuple of 1 bytes, but the parameter is a 8-byte value.*struct's members"),
        ((np.int64(1), np.int64(2)), "argument 3 is a tuple of 16 bytes"),
        ((1, np.int32(2)), "argument 3 is a tuple with a int in it"),
        ((None, np.int32(2)), "argument 3 is a tuple with a NoneType in it"),
    ],
)
def test_a_tuple_that_is_not_the_struct_is_refused(pair: tuple[Any, ...], message: str) -> None:
    args = (buffer(1), (), pair, NESTED)
    with pytest.raises(PlanError, match=message):
        compile_kernel(structs_kernel(), args, ARCH).pack(args)
