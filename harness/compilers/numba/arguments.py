"""Packs a Numba kernel's arguments into the bytes of its parameters, flattened as in numba-cuda's own launch.

An array becomes meminfo and parent (both null), the number of items, the bytes per item, the address, the extents, and
the strides in bytes. A complex number becomes its two parts, and a tuple its items.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.compilers.compiled_kernel import DevicePointer
from harness.model.tensor_map import TensorMap
from harness.support.errors import PlanError


def stand_in(argument: Any) -> Any:
    """Return an object that Numba types like the argument of a native launch. A tensor map becomes its address."""
    if isinstance(argument, DevicePointer):
        return _array_like(argument)
    if isinstance(argument, TensorMap):
        return np.uint64(0)
    if isinstance(argument, tuple):
        items = [stand_in(item) for item in argument]
        return type(argument)(*items) if hasattr(argument, "_fields") else tuple(items)
    return argument


def _array_like(pointer: DevicePointer) -> npt.NDArray[Any]:
    """Return a small array with the element type, dimensions and layout of a buffer."""
    dtype = _element_type(pointer.dtype)
    dimensions = len(pointer.shape)
    layout = _layout(pointer)
    if layout == "A":
        return np.empty((2,) * (dimensions + 1), dtype)[..., 0]
    extent = 1 if layout == "C" else 2
    return np.empty((extent,) * dimensions, dtype, order="C" if layout == "C" else "F")


_REGISTERED = 2
"""Value of `dtype.isbuiltin` for a type that a package adds to NumPy, such as those of `ml_dtypes`."""


@functools.cache
def _element_type(dtype: str | np.dtype[Any]) -> np.dtype[Any]:
    """Return the type as which Numba sees an element: bfloat16 and float8 as the integers of their bits."""
    if dtype == "bfloat16":
        return np.dtype(np.uint16)
    found = np.dtype(dtype)
    return np.dtype(f"u{found.itemsize}") if found.isbuiltin == _REGISTERED else found


def _layout(pointer: DevicePointer) -> str:
    """Return Numba's word for the order of an array's elements: C, F, or A for any other."""
    if pointer.strides is None:
        return "C"
    stride = _element_type(pointer.dtype).itemsize
    for extent, actual in zip(pointer.shape, pointer.strides):
        if extent > 1 and actual != stride:
            return "A"
        stride *= extent
    return "F"


def pack(name: str, signature: tuple[str, ...], args: tuple[Any, ...]) -> tuple[bytes, ...]:
    """Return the bytes of each parameter. Raises `PlanError` if the types of `args` differ from `signature`."""
    types = signature_of(name, args)
    if len(types) != len(signature):
        raise PlanError(
            f"kernel {name} takes {len(signature)} arguments ({', '.join(signature)}), but it is given {len(types)}"
        )
    for position, (wanted, given) in enumerate(zip(signature, types), start=1):
        if str(given) != wanted:
            raise PlanError(f"kernel {name} was compiled for {wanted} as argument {position}, but it is given {given}")
    return tuple(word for numba_type, argument in zip(types, args) for word in _words(name, numba_type, argument))


_types_of_arrays: dict[tuple[str | np.dtype[Any], int, str], Any] = {}


def _type_of(argument: Any) -> Any:
    from numba.cuda.typing.typeof import typeof

    if not isinstance(argument, DevicePointer):
        return typeof(stand_in(argument))
    # Cached, because typing a launch in Numba takes longer than emulating a small one.
    kind = argument.dtype, len(argument.shape), _layout(argument)
    known = _types_of_arrays.get(kind)
    if known is None:
        known = _types_of_arrays[kind] = typeof(stand_in(argument))
    return known


def signature_of(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the Numba type of each argument. Raises `PlanError` for objects that a kernel cannot take."""
    types = []
    for position, argument in enumerate(args, start=1):
        try:
            types.append(_type_of(argument))
        except (ValueError, TypeError, NotImplementedError) as error:
            raise PlanError(
                f"kernel {name}: argument {position} is a {type(argument).__name__}, which Numba cannot pass; "
                "give a buffer, a number or a tuple of numbers"
            ) from error
    return tuple(types)


def _words(name: str, numba_type: Any, argument: Any) -> list[bytes]:
    if isinstance(argument, DevicePointer):
        return _array_words(argument)
    if isinstance(argument, TensorMap):
        raise PlanError(f"kernel {name}: a tensor map has to lie somewhere before the kernel is given its address")
    if isinstance(argument, tuple):
        return [word for t, item in zip(numba_type, argument) for word in _words(name, t, item)]
    type_name = str(numba_type)
    part = _part_dtype(type_name)
    if part is not None:
        parts = (argument.real, argument.imag) if type_name.startswith("complex") else (argument,)
        return [np.array(each, part).tobytes() for each in parts]
    raise PlanError(
        f"kernel {name}: an argument of Numba's type {type_name} cannot be passed; "
        "give a buffer, a number or a tuple of numbers"
    )


@functools.cache
def _part_dtype(type_name: str) -> np.dtype[Any] | None:
    """Return NumPy's type of a number, for a complex one that of its two parts; None for other types."""
    try:
        dtype = np.dtype("bool" if type_name == "boolean" else type_name)
    except TypeError:
        return None
    return dtype.type(0).real.dtype if dtype.kind in "biufc" else None


def _array_words(pointer: DevicePointer) -> list[bytes]:
    item_bytes = _element_type(pointer.dtype).itemsize
    strides = pointer.strides
    if strides is None:
        ends = itertools.accumulate(reversed(pointer.shape[1:]), operator.mul, initial=item_bytes)
        strides = tuple(reversed([*ends][: len(pointer.shape)]))
    words = (0, 0, math.prod(pointer.shape), item_bytes, pointer.address, *pointer.shape, *strides)
    return [struct.pack("<Q", word) for word in words]
