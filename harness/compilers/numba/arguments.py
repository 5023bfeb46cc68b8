"""Packs a Numba kernel's arguments into the bytes of its parameters, flattened as in numba-cuda's own launch.

An array becomes meminfo and parent (both null), the number of items, the bytes per item, the address, the extents, and
the strides in bytes. A complex number becomes its two parts, and a tuple its items.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import numpy as np

from harness.compilers.compiled_kernel import DevicePointer
from harness.model.plan import ELEMENT_BYTES, map_leaves
from harness.model.tensor_map import TensorMap
from harness.support.errors import PlanError


def stand_in(argument: Any) -> Any:
    """Return an object that Numba types like the argument of a native launch. A tensor map becomes its address."""
    if isinstance(argument, DevicePointer):
        dtype = "uint16" if argument.dtype == "bfloat16" else argument.dtype
        return np.empty((1,) * len(argument.shape), dtype)
    if isinstance(argument, TensorMap):
        return np.uint64(0)
    return map_leaves(stand_in, argument) if isinstance(argument, tuple) else argument


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


_types_of_arrays: dict[tuple[str, int], Any] = {}


def _type_of(argument: Any) -> Any:
    from numba.cuda.typing.typeof import typeof

    if not isinstance(argument, DevicePointer):
        return typeof(stand_in(argument))
    # Cached, because typing a launch in Numba takes longer than emulating a small one.
    kind = argument.dtype, len(argument.shape)
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
                "give a buffer's name, a number or a tuple of numbers"
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
        "give a buffer's name, a number or a tuple of numbers"
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
    item_bytes = ELEMENT_BYTES[pointer.dtype]
    strides = []
    stride = item_bytes
    for extent in reversed(pointer.shape):
        strides.append(stride)
        stride *= extent
    items = stride // item_bytes
    words = (0, 0, items, item_bytes, pointer.address, *pointer.shape, *reversed(strides))
    return [struct.pack("<Q", word) for word in words]
