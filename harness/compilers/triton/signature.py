"""Types the arguments of a launch as Triton does: names of types, constexprs, and what is a multiple of 16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.compilers.compiled_kernel import DevicePointer
from harness.compilers.triton.kernel import TritonKernel
from harness.support.errors import PlanError

CONSTEXPR = "constexpr"
DIVISOR = 16
"""Triton compiles another kernel for pointers and integers that are multiples of it."""
_TYPES = {
    "bool": "i1",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
}
"""Triton's names of types by NumPy's."""
_SCALARS = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64, "i1": np.bool_, "u1": np.bool_}
"""What a Python number becomes as an argument, where Triton gives it another type than C."""


@dataclass(frozen=True)
class Typed:
    """What Triton compiles a function for."""

    types: tuple[tuple[str, str], ...]
    """Name and type of each parameter of the function, such as `*fp32` or `constexpr`."""
    constexprs: tuple[tuple[str, Any], ...]
    """Name and value of each constexpr, and of each integer that is 1."""
    multiples: tuple[str, ...]
    """Names of the parameters that are multiples of `DIVISOR`."""

    def of(self, name: str) -> str:
        """The type of a parameter."""
        return dict(self.types)[name]


def typed(kernel: TritonKernel, args: tuple[Any, ...]) -> Typed:
    """Type the function's parameters for the arguments of a launch.

    Parameters at the end that have defaults may be left out. One buffer more than there are parameters is scratch
    memory for Triton itself. Raises `PlanError` if the arguments do not fit.
    """
    parameters = {parameter.name: parameter for parameter in kernel.function.params}
    names = kernel.arg_names
    given = dict(zip(names, args))
    missing = [name for name in names[len(args) :] if not parameters[name].has_default]
    if len(args) > len(names) + has_scratch(kernel, args) or missing:
        raise PlanError(
            f"kernel {kernel.name} takes {len(names)} arguments ({', '.join(names)}), but it is given {len(args)}"
        )
    types, constexprs, multiples = [], [], []
    for name, parameter in parameters.items():
        fixed = name in kernel.constexprs
        value = kernel.constexprs[name] if fixed else given.get(name, getattr(parameter, "default", None))
        free = not parameter.do_not_specialize
        if fixed or parameter.is_constexpr or value is None or (free and _is_one(value)):
            types.append((name, CONSTEXPR))
            constexprs.append((name, value))
            continue
        declared = kernel.types.get(name) or str(parameter.annotation_type or "")
        types.append((name, declared or _type_of(kernel, name, value)))
        if free and not parameter.do_not_specialize_on_alignment and _is_multiple(value):
            multiples.append(name)
    return Typed(tuple(types), tuple(constexprs), tuple(multiples))


def has_scratch(kernel: TritonKernel, args: tuple[Any, ...]) -> bool:
    """Whether the last argument is scratch memory: a buffer after those of all parameters."""
    return len(args) == len(kernel.arg_names) + 1 and isinstance(args[-1], DevicePointer)


def scalar(type_name: str, value: Any) -> Any:
    """Return an argument in the representation of C: a Python number takes Triton's type."""
    if isinstance(value, (bool, int, float)) and type_name in _SCALARS:
        return _SCALARS[type_name](value)
    return value


def _is_one(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value == 1


def _is_multiple(value: Any) -> bool:
    number = value.address if isinstance(value, DevicePointer) else value
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool) and number % DIVISOR == 0


def _type_of(kernel: TritonKernel, name: str, value: Any) -> str:
    if isinstance(value, DevicePointer):
        found = _TYPES.get(str(value.dtype))
        if found is not None:
            return f"*{found}"
    elif isinstance(value, bool):
        return "u1"
    elif isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
    elif isinstance(value, float):
        return "fp32"
    elif isinstance(value, np.generic) and str(value.dtype) in _TYPES:
        return _TYPES[str(value.dtype)]
    what = f"{value.dtype} array" if isinstance(value, DevicePointer) else type(value).__name__
    raise PlanError(f"kernel {kernel.name}: argument {name} is a {what}; Triton takes a buffer or a number")
