"""Defines a kernel compiled to PTX, and the pointers that stand for buffers among the arguments of a launch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.model.plan import Launch, in_three_dimensions
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


def device_argument(argument: Any) -> Any:
    """Convert an argument of a native launch for a toolchain: an array of CuPy becomes a `DevicePointer`."""
    import numpy as np

    if not hasattr(argument, "data") or isinstance(argument, np.generic):
        return argument
    name = argument.dtype.name
    flags = getattr(argument, "flags", None)  # an array without them is dense
    strides = None if flags is None or flags.c_contiguous else tuple(argument.strides)
    # CuPy has no bfloat16. Arrays of uint16 hold it, and no other data type uses uint16.
    name = "bfloat16" if name == "uint16" else name
    return DevicePointer(int(argument.data.ptr), tuple(argument.shape), name, strides)


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

    cooperative: bool = False
    """Whether its language launches it cooperatively, because it calls `grid.sync()`."""
    own_module: str | None = None
    """Identifies the module if the PTX does not. Kernels of one module share its variables. None: the PTX identifies
    it."""
    threads: int | None = None
    """Threads per block for which it is compiled, as Triton's kernels are; None if any launch may choose them."""
    added_threads: int = 0
    """Threads that the compiler adds to each block, such as the producer's in a warp-specialized kernel."""
    shared_bytes: int = 0
    """Dynamic shared memory per block that the compiler adds to the launch's."""
    blocks_per_program: int = 1
    """Blocks in a cluster that the compiler makes of each block of the launch, which Triton calls a program."""
    scratch_bytes: int = 0
    """Global memory per program that the compiler itself uses, and that an argument provides."""

    def configured(self, launch: Launch) -> Launch:
        """Return the launch with the threads, the shared memory and the clusters that the compiler has chosen.

        Raises `PlanError` if the launch has other threads than those for which the kernel is compiled.
        """
        if self.threads is None:
            return launch
        if math.prod(launch.block) != self.threads:
            raise PlanError(
                f"kernel {self.name} is compiled for {self.threads} threads, and its block is {launch.block}; "
                f"write block=({self.threads},), or change num_warps"
            )
        x, y, z = in_three_dimensions(launch.grid)
        return replace(
            launch,
            grid=(x * self.blocks_per_program, y, z),
            block=(self.threads + self.added_threads,),
            shared_bytes=launch.shared_bytes + self.shared_bytes,
            cluster=(self.blocks_per_program,) if self.blocks_per_program > 1 else launch.cluster,
        )

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
