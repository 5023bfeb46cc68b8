"""What a language has to provide for its kernels to be planned, compiled, emulated and launched natively."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from harness.compilers.compiled_kernel import CompiledKernel
from harness.compilers.native_gpu import NativeGpu
from harness.model.plan import Launch

Call = Callable[[], None]
"""A launch bound to its arrays: calling it launches, and does nothing else."""


class Toolchain(ABC):
    """One language. A file with a subclass, and its line in `toolchains.TOOLCHAINS`, add a language.

    Importing the file must load neither the language's package nor a compiler: all of them are imported to list
    variants. `kernel` is everywhere an object that this toolchain owns.
    """

    name: str
    """What `Variant.backend` and the JSON key `backend` call it."""
    kernels: str
    """What its kernels are, for messages: such as `a cupy.RawKernel`."""
    types_in_source = False
    """Whether a kernel's own text says the types of its parameters: its code is the same whatever it is given then."""
    tensor_maps_by_value = True
    """Whether its kernels take a tensor map as a parameter of 128 bytes; else as the address of those, a uint64."""

    @abstractmethod
    def owns(self, kernel: object) -> bool:
        """Whether the object is a kernel of this language, told without importing the language's package."""

    @abstractmethod
    def compile(self, kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
        """PTX for `arch`, such as `sm_90`, without a GPU.

        `args` are the arguments of the launch: `DevicePointer` for a buffer, NumPy or Python scalars else. Raises
        `CompileError` with the compiler's own log, `PlanError` where the arguments do not fit the kernel.
        """

    @abstractmethod
    def pack(self, compiled: CompiledKernel, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        """The bytes of each `.param` in order. Raises `PlanError` where an argument does not fit its parameter."""

    @abstractmethod
    def bind(self, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
        """A call that launches natively on `gpu.stream` with these arrays of CuPy's; compiling is done here.

        Raises `CompileError`, and `PlanError` where the launch wants too much shared memory.
        """

    def machine_code(self, kernel: Any, arch: str) -> bytes | None:
        """The cubin that the language's own launch runs on `arch`; None where the driver compiles the PTX."""
        return None

    @abstractmethod
    def source(self, kernel: Any) -> str:
        """The author's own text, for listings."""

    def options(self, kernel: Any) -> tuple[str, ...]:
        """The compiler's options that the author gave, for listings."""
        return ()

    def identity(self, kernel: Any) -> str | None:
        """What the kernel's machine code depends on, as text for caches; None where that cannot be told."""
        return None


def type_names(kernel: object) -> set[str]:
    """The object's class and its bases, each as its package and name, such as `cupy.RawKernel`."""
    return {f"{t.__module__.partition('.')[0]}.{t.__name__}" for t in type(kernel).__mro__}
