"""Packs a kernel's arguments into the bytes of its C parameters, in the way that CuPy passes them.

A tuple is a struct by value. Members are laid out as in C: each is aligned to its size, or, if it is a struct, to its
own most aligned member, and a struct without members takes one byte.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from harness.compilers.compiled_kernel import DevicePointer, device_argument
from harness.model.plan import map_leaves
from harness.ptx.parameters import Parameter
from harness.support.errors import PlanError

_POINTER = struct.Struct("<Q")


def pack(name: str, parameters: tuple[Parameter, ...], args: tuple[Any, ...]) -> tuple[bytes, ...]:
    """Return the bytes of each parameter. An integer may be wider than its parameter if its value fits.

    CuPy does not check types, so a wrong type reaches the kernel as garbage; this function raises `PlanError`.
    """
    if len(args) != len(parameters):
        raise PlanError(
            f"kernel {name} takes {len(parameters)} arguments ({_describe(parameters)}), but it is given {len(args)}"
        )
    return tuple(_word(name, i, p, a) for i, (p, a) in enumerate(zip(parameters, args), start=1))


def _word(name: str, position: int, parameter: Parameter, argument: Any) -> bytes:
    def mismatch(what: str, hint: str = "") -> PlanError:
        return PlanError(
            f"kernel {name}: argument {position} is {what}, but the parameter is a {parameter.description} "
            f"({parameter.size_bytes} bytes){hint}"
        )

    if isinstance(argument, tuple):
        raw, _ = _struct(name, position, argument)
        if len(raw) != parameter.size_bytes:
            hint = "; compare the tuple with the struct's members: np.int32(n), np.float32(x), buffers' names"
            raise mismatch(f"a tuple of {len(raw)} bytes", hint)
        return raw
    if isinstance(argument, DevicePointer):
        if parameter.size_bytes != 8 or parameter.type.startswith("f"):
            raise mismatch(f"a buffer of {argument.dtype}{argument.shape}")
        return _POINTER.pack(argument.address)
    if argument is None:  # passed by CuPy as a null pointer
        value: Any = np.uint64(0)
    elif isinstance(argument, bool):
        value = np.bool_(argument)
    elif isinstance(argument, int):
        return _integer(argument, parameter, mismatch)
    elif isinstance(argument, np.integer) and argument.itemsize > parameter.size_bytes:
        return _integer(int(argument), parameter, mismatch)
    elif isinstance(argument, float):
        value = np.float64(argument)
    elif isinstance(argument, complex):
        value = np.complex128(argument)
    elif isinstance(argument, (np.generic, np.ndarray)) and argument.size == 1 and not argument.dtype.hasobject:
        value = argument
    else:
        raise mismatch(f"a {type(argument).__name__}", "; pass a buffer or a NumPy scalar such as np.int32(n)")
    raw = bytes(np.asarray(value).tobytes())
    what = f"{value.dtype} ({len(raw)} bytes)"
    if len(raw) != parameter.size_bytes:
        raise mismatch(what, f"; write {_hint(parameter)}")
    is_float = value.dtype.kind == "f"
    if not parameter.is_array and is_float != parameter.type.startswith("f"):
        raise mismatch(what, f"; write {_hint(parameter)}")
    return raw


def structs_by_value(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments of a native launch in which each tuple is a NumPy scalar of its struct's bytes."""
    return tuple(
        np.void(_struct(name, position, map_leaves(device_argument, argument))[0])
        if isinstance(argument, tuple)
        else argument
        for position, argument in enumerate(args, start=1)
    )


def _struct(name: str, position: int, items: tuple[Any, ...]) -> tuple[bytes, int]:
    """Return the bytes of a struct and its alignment."""
    raw, alignment = bytearray(), 1
    for item in items:
        member, of_member = _struct(name, position, item) if isinstance(item, tuple) else _member(name, position, item)
        raw += bytes(-len(raw) % of_member) + member
        alignment = max(alignment, of_member)
    raw += bytes(-len(raw) % alignment)
    return bytes(raw) or b"\0", alignment


def _member(name: str, position: int, item: Any) -> tuple[bytes, int]:
    if isinstance(item, DevicePointer):
        raw = _POINTER.pack(item.address)
    elif isinstance(item, np.generic) and item.dtype.kind in "biuf":
        raw = item.tobytes()
    else:
        raise PlanError(
            f"kernel {name}: argument {position} is a tuple with a {type(item).__name__} in it; members of a struct "
            "are buffers' names and NumPy scalars, such as np.int32(n)"
        )
    return raw, len(raw)


def _integer(value: int, parameter: Parameter, mismatch: Any) -> bytes:
    # CuPy passes an int64 (a uint64 above its range), of which the driver reads as many bytes as the parameter has.
    if parameter.type.startswith("f") or parameter.is_array:
        raise mismatch(f"the int {value}", f"; write {_hint(parameter)}")
    bits = 8 * parameter.size_bytes
    if not -(1 << (bits - 1)) <= value < (1 << bits):
        raise mismatch(f"the int {value}", ", which is too narrow for it")
    return (value % (1 << bits)).to_bytes(parameter.size_bytes, "little")


def _hint(parameter: Parameter) -> str:
    if parameter.is_array:
        return f"a NumPy scalar of {parameter.size_bytes} bytes, such as np.float16(x) or a structured scalar"
    kind = {"f": "float"}.get(parameter.type[0], "int")
    return f"np.{kind}{8 * parameter.size_bytes}(x)" + (" or a buffer" if parameter.type == "u64" else "")


def _describe(parameters: tuple[Parameter, ...]) -> str:
    return ", ".join(p.description for p in parameters) or "none"
