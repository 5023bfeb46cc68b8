"""Defines a kernel compiled to PTX, and the pointers that stand for buffers among the arguments of a launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.ptx.parameters import Parameter
from harness.support.errors import PlanError

if TYPE_CHECKING:
    import numpy as np

    from harness.compilers.toolchain import Toolchain


@dataclass(frozen=True)
class DevicePointer:
    """A buffer, or an array in one, as an argument of a kernel. It is writable."""

    address: int
    """Address in device memory."""
    shape: tuple[int, ...]
    """Extents in elements."""
    dtype: str | np.dtype[Any]
    """A name of `harness.model.problem.ELEMENT_BYTES`, or any type of NumPy. Numba sees bfloat16 as uint16."""
    strides: tuple[int, ...] | None = None
    """Bytes between consecutive elements of each dimension; None if the array is C-contiguous."""


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel's PTX, with everything needed to pack its arguments."""

    ptx: str
    """The whole module, as the compiler wrote it."""
    entry: str
    """The mangled name that follows `.entry`."""
    name: str
    """The name that the user gave the kernel."""
    toolchain: Toolchain
    """The toolchain of the kernel's language, which packs its arguments."""
    arch: str
    """Target architecture, such as `sm_90`."""
    parameters: tuple[Parameter, ...]
    """The `.param`s of the entry, in order."""
    signature: tuple[str, ...] = ()
    """Type of each argument in the notation of a language with its own types. Empty for C types."""
    max_registers: int | None = None
    """Register limit that the user requested; None if none. The PTX does not contain it, so pass it to `ptxas`."""

    own_module: str | None = None
    """Identifies the module if the PTX does not. Kernels of one module share its variables. None: the PTX identifies
    it."""

    @property
    def module(self) -> str:
        """Text that is equal for kernels of the same module only."""
        return self.ptx if self.own_module is None else self.own_module

    def pack(self, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        """Return the bytes of each `.param`, in order. The arguments must have the types they had at compile time.

        Raises `PlanError` if the arguments do not fit the parameters; the message names what the kernel expects.
        """
        words = self.toolchain.pack(self, args)
        sizes = tuple(len(word) for word in words)
        wanted = tuple(parameter.size_bytes for parameter in self.parameters)
        if sizes != wanted:
            raise PlanError(
                f"kernel {self.name}: its arguments come to {len(sizes)} values of {list(sizes)} bytes, "
                f"but its PTX takes {len(wanted)} of {list(wanted)} bytes"
            )
        return words
