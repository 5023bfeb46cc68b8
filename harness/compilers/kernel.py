"""What goes into a compiler besides the kernel, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.compilers.parameters import Parameter
from harness.support.errors import PlanError


@dataclass(frozen=True)
class DevicePointer:
    """A buffer as a kernel's argument: C-contiguous, writable."""

    address: int
    """Where it lies in the device's memory."""
    shape: tuple[int, ...]
    """Extents in elements."""
    dtype: str
    """A name of `harness.model.variant.ELEMENT_BYTES`. bfloat16 reaches Numba as uint16."""


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel as PTX, and how to lay out arguments for it."""

    ptx: str
    """The whole module, as the compiler wrote it."""
    entry: str
    """The mangled name behind `.entry`."""
    name: str
    """The name that the user gave the kernel."""
    backend: str
    """`cupy` or `numba`."""
    arch: str
    """What it was compiled for, such as `sm_90`."""
    parameters: tuple[Parameter, ...]
    """The entry's `.param`s in order."""
    signature: tuple[str, ...] = ()
    """Numba: the type of each argument, as Numba writes it. Empty for CuPy, whose kernels have C's types."""
    max_registers: int | None = None
    """The limit that the user asked for; the PTX does not carry it, `ptxas` has to be told."""

    def pack(self, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        """The bytes of each `.param`, in order and of its size, for the same kinds of arguments as at compile time.

        Raises `PlanError` where arguments and parameters do not fit; it says what the kernel wants.
        """
        if self.backend == "numba":
            from harness.compilers import numba_arguments

            words = numba_arguments.pack(self.name, self.signature, args)
        else:
            from harness.compilers import cupy_arguments

            words = cupy_arguments.pack(self.name, self.parameters, args)
        sizes = tuple(len(word) for word in words)
        wanted = tuple(parameter.size_bytes for parameter in self.parameters)
        if sizes != wanted:
            raise PlanError(
                f"kernel {self.name}: its arguments come to {len(sizes)} values of {list(sizes)} bytes, "
                f"but its PTX takes {len(wanted)} of {list(wanted)} bytes"
            )
        return words
