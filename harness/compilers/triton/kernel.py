"""Defines a Triton function with the values of its constexprs and the options of its compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.compilers.toolchain import type_names
from harness.support.errors import PlanError
from harness.support.gpu_data_sheets import WARP_LANES


def is_function(value: object) -> bool:
    """Whether an object is a function under `triton.jit`, checked without importing Triton."""
    return "triton.JITFunction" in type_names(value)


@dataclass(frozen=True, eq=False)
class TritonKernel:
    """A function under `triton.jit` with constexprs and options: `TritonKernel(softmax, {"BLOCK": 64}, num_warps=8)`.

    A launch has as many blocks as the function has programs, blocks of `block` threads, and as its arguments the
    function's remaining parameters in order. Raises `PlanError` if the function is not one of Triton, or has no
    parameter of a name in `constexprs` or `types`.
    """

    function: Any
    """The function."""
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    """Values of parameters by name. Other parameters may be constexprs, too: a launch passes them as arguments."""
    num_warps: int = 4
    """Warps per program."""
    num_stages: int = 3
    """Stages of software pipelines."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Triton's types of parameters whose arguments do not determine them, by name. A tensor descriptor from the host,
    such as `tensordesc<fp16[128, 64]>`, is a tuple of its tensor map, its shape as int32 and its strides as int64."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of Triton's CUDA compiler, such as `maxnreg`."""

    def __post_init__(self) -> None:
        if not is_function(self.function):
            raise PlanError(
                f"TritonKernel(function, ...): its function is a {type(self.function).__name__}; it has to be a "
                "function under triton.jit, without triton.autotune or triton.heuristics"
            )
        for name in (*self.constexprs, *self.types):
            if name not in self.function.arg_names:
                raise PlanError(
                    f"kernel {self.name} has no parameter {name!r}; it has {', '.join(self.function.arg_names)}"
                )

    @property
    def name(self) -> str:
        """Name of the function."""
        return str(self.function.__name__)

    @property
    def block(self) -> tuple[int, ...]:
        """Threads per block, for `Launch`."""
        return (WARP_LANES * self.num_warps,)

    @property
    def arg_names(self) -> tuple[str, ...]:
        """Names of the parameters that a launch passes, in order."""
        return tuple(name for name in self.function.arg_names if name not in self.constexprs)


def as_kernel(kernel: Any) -> TritonKernel:
    """Return the kernel, or a function under `triton.jit` as a kernel with the default options."""
    return kernel if isinstance(kernel, TritonKernel) else TritonKernel(kernel)
