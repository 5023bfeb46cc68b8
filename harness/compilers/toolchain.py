"""Defines the interface of a language: how its kernels are recognized, compiled, packed and launched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from harness.compilers.compiled_kernel import CompiledKernel
from harness.compilers.native_gpu import NativeGpu
from harness.model.plan import Launch

Call = Callable[[], None]
"""A launch bound to its arrays. Calling it only launches the kernel."""


class Toolchain(ABC):
    """A language for kernels. To add one, write a subclass in its own file and list it in `toolchains.TOOLCHAINS`.

    Importing the file must load neither the language's package nor a compiler, because listing variants imports all
    toolchains. The parameter `kernel` is always an object that the toolchain owns.
    """

    name: str
    """Name of the language in `Variant.backend` and under the JSON key `backend`."""
    kernels: str
    """Description of its kernels for messages, such as `a cupy.RawKernel`."""
    modules = ""
    """Description of what `compile_module` compiles, for messages; empty if it compiles nothing."""
    types_in_source = False
    """Whether the source declares the parameter types, so that the code does not depend on the arguments."""
    tensor_maps_by_value = True
    """Whether kernels take a tensor map as a parameter of 128 bytes. Otherwise they take its address, a uint64."""
    compiles_in_plan = False
    """Whether `plan` of a variant itself compiles its kernels, and may take as long as `compile`."""

    @abstractmethod
    def owns(self, kernel: object) -> bool:
        """Whether the object is a kernel of this language, checked without importing the language's package."""

    @abstractmethod
    def compile(self, kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
        """Compile to PTX for `arch`, such as `sm_90`, without a GPU.

        `args` are the arguments of the launch: a `DevicePointer` for a buffer, otherwise NumPy or Python scalars.
        Raises `CompileError` with the compiler's own log, and `PlanError` if the arguments do not fit the kernel.
        """

    def compile_module(self, module: Any, arch: str) -> dict[str, CompiledKernel] | None:
        """Return the kernels of a whole module by their names, compiled for `arch`; None for other objects.

        They are in one PTX text, and share its variables. Raises `CompileError`.
        """
        return None

    @abstractmethod
    def pack(self, compiled: CompiledKernel, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        """Return the bytes of each `.param`, in order. Raises `PlanError` if an argument does not fit its parameter."""

    @abstractmethod
    def bind(self, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
        """Compile, and return a call that launches the kernel natively on `gpu.stream` with these CuPy arrays.

        Raises `CompileError`, and `PlanError` if the launch requests too much shared memory.
        """

    def machine_code(self, kernel: Any, arch: str) -> bytes | None:
        """Return the cubin or fat binary that the language's own launch runs; None if the driver compiles the PTX."""
        return None

    @abstractmethod
    def source(self, kernel: Any) -> str:
        """Return the source as the user wrote it, for listings."""

    def expanded(self, kernel: Any) -> str:
        """Return what of the source the kernel compiles, for listings: features that are off are left out."""
        return self.source(kernel)

    def options(self, kernel: Any) -> tuple[str, ...]:
        """Return the compiler options that the user gave, for listings."""
        return ()

    def identity(self, kernel: Any) -> str | None:
        """Return a text of everything that the machine code depends on, for caches; None if that is unknown."""
        return None


def type_names(kernel: object) -> set[str]:
    """Return the object's class and its bases, each as package and name, such as `cupy.RawKernel`."""
    return {f"{t.__module__.partition('.')[0]}.{t.__name__}" for t in type(kernel).__mro__}
