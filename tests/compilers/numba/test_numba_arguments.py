"""Numba's arguments are flattened as a native launch does it, and the PTX agrees."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import pytest
from numba import cuda
from sample_kernels import ARCH, STAGED_ARGS, buffer, staged, u64

from harness.compilers import compile_kernel
from harness.support.errors import PlanError


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
