"""What goes into a compiler besides the kernel, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.ptx.parameters import Parameter
from harness.support.errors import PlanError

if TYPE_CHECKING:
    from harness.compilers.toolchain import Toolchain


@dataclass(frozen=True)
class DevicePointer:
    """A buffer as a kernel's argument: C-contiguous, writable."""

    address: int
    """Where it lies in the device's memory."""
    shape: tuple[int, ...]
    """Extents in elements."""
    dtype: str
    """A name of `harness.model.problem.ELEMENT_BYTES`. bfloat16 reaches Numba as uint16."""


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel as PTX, and how to lay out arguments for it."""

    ptx: str
    """The whole module, as the compiler wrote it."""
    entry: str
    """The mangled name behind `.entry`."""
    name: str
    """The name that the user gave the kernel."""
    toolchain: Toolchain
    """The language that it was written in, which lays out its arguments."""
    arch: str
    """What it was compiled for, such as `sm_90`."""
    parameters: tuple[Parameter, ...]
    """The entry's `.param`s in order."""
    signature: tuple[str, ...] = ()
    """The type of each argument, as a language with types of its own writes it. Empty where they are C's types."""
    max_registers: int | None = None
    """The limit that the user asked for; the PTX does not carry it, `ptxas` has to be told."""

    own_module: str | None = None
    """What tells its module from others where that is not its PTX. Kernels of one module share their variables."""

    @property
    def module(self) -> str:
        """The same for kernels of one module, and for no others."""
        return self.ptx if self.own_module is None else self.own_module

    def pack(self, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        """The bytes of each `.param`, in order and of its size, for the same kinds of arguments as at compile time.

        Raises `PlanError` where arguments and parameters do not fit; it says what the kernel wants.
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
