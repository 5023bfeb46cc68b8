"""Arguments of a function with the calling convention of tvm-ffi, which CuTe DSL's `--enable-tvm-ffi` compiles to.

Such a function takes an array of `TVMFFIAny`, 16 bytes each: a type and a value. An array on a GPU is a `DLTensor`
(DLPack), a tuple is a `TVMFFIArray` object. The layouts are those of tvm-ffi's C API (`tvm/ffi/c_api.h`) and of DLPack
(`dlpack/dlpack.h`).
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.support.errors import PlanError

_NONE, _INT, _BOOL, _FLOAT, _TENSOR, _ARRAY = 0, 1, 2, 3, 7, 71
_ONE_REFERENCE = 1 | 1 << 32
"""Reference counts of an object: one strong, one weak."""
_CUDA = 2
_TYPES = {
    "float16": (2, 16), "bfloat16": (4, 16), "float32": (2, 32), "float64": (2, 64),
    "uint8": (1, 8), "int32": (0, 32), "int64": (0, 64),
}  # fmt: skip
"""Type code and bits in DLPack of each data type of a buffer."""


@dataclass(frozen=True)
class Tensor:
    """An array on the GPU as an argument."""

    address: int
    """Address of its first element."""
    shape: tuple[int, ...]
    """Extents in elements."""
    strides: tuple[int, ...]
    """Distance in elements between consecutive elements of each dimension."""
    dtype: str
    """A name of `harness.model.problem.ELEMENT_BYTES`."""


class _Value(ctypes.Structure):
    """`TVMFFIAny`."""

    _fields_ = [("type", ctypes.c_int32), ("unused", ctypes.c_uint32), ("value", ctypes.c_uint64)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32),
        ("dimensions", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_uint64), ("strides", ctypes.c_uint64), ("offset_bytes", ctypes.c_uint64),
    ]  # fmt: skip


class _Array(ctypes.Structure):
    """`TVMFFIObject` followed by `TVMFFISeqCell`."""

    _fields_ = [
        ("references", ctypes.c_uint64), ("type", ctypes.c_int32), ("unused", ctypes.c_uint32),
        ("deleter", ctypes.c_uint64), ("items", ctypes.c_uint64), ("size", ctypes.c_int64),
        ("capacity", ctypes.c_int64), ("items_deleter", ctypes.c_uint64),
    ]  # fmt: skip


class PackedArguments:
    """The arguments of one call, in memory that lives as long as this object.

    Arguments are `Tensor`s, None, numbers of Python or NumPy, and tuples of arguments. Raises `PlanError` for others.
    """

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self._kept: list[Any] = []
        self.values = self._values(arguments)
        """The array of values."""
        self.count = len(arguments)

    def _values(self, arguments: tuple[Any, ...]) -> ctypes.Array[_Value]:
        return (_Value * len(arguments))(*(self._value(argument) for argument in arguments))

    def _value(self, argument: Any) -> _Value:
        if argument is None:
            return _Value(_NONE, 0, 0)
        if isinstance(argument, Tensor):
            return _Value(_TENSOR, 0, self._tensor(argument))
        if isinstance(argument, tuple):
            return _Value(_ARRAY, 0, self._array(argument))
        if isinstance(argument, (bool, np.bool_)):
            return _Value(_BOOL, 0, int(argument))
        if isinstance(argument, (int, np.integer)):
            return _Value(_INT, 0, int(argument) % (1 << 64))
        if isinstance(argument, (float, np.floating)):
            return _Value(_FLOAT, 0, int.from_bytes(struct.pack("<d", argument), "little"))
        raise PlanError(
            f"a CuTe function is given a {type(argument).__name__}; its arguments are CuteTensors, numbers, None and "
            "tuples of these"
        )

    def _tensor(self, tensor: Tensor) -> int:
        if tensor.dtype not in _TYPES:
            raise PlanError(f"a CuTe function is given an array of {tensor.dtype}; it takes {', '.join(_TYPES)}")
        rank = len(tensor.shape)
        shape, strides = (ctypes.c_int64 * rank)(*tensor.shape), (ctypes.c_int64 * rank)(*tensor.strides)
        places = ctypes.addressof(shape), ctypes.addressof(strides)
        packed = _DLTensor(tensor.address, _CUDA, 0, rank, *_TYPES[tensor.dtype], 1, *places, 0)
        self._kept += [shape, strides, packed]
        return ctypes.addressof(packed)

    def _array(self, items: tuple[Any, ...]) -> int:
        values = self._values(items)
        packed = _Array(_ONE_REFERENCE, _ARRAY, 0, 0, ctypes.addressof(values), len(items), len(items), 0)
        self._kept += [values, packed]
        return ctypes.addressof(packed)


def call(address: int, arguments: PackedArguments) -> int:
    """Call the function at an address. Returns 0, or another number if it has raised an error."""
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
    result = _Value()
    values = ctypes.cast(arguments.values, ctypes.c_void_p)
    return int(function(address)(None, values, arguments.count, ctypes.byref(result)))
