"""Compiles, packs, launches and shows kernels that exist in another process, and exchanges only plain data with it.

The kernels of a plugin stay in the process that runs the plugin's code (see `harness.execution.isolation`). To compile
one, this process sends a request and receives PTX or a cubin, and the bytes of the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.compilers.compiled_kernel import CompiledKernel
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.packed_launch import bind_packed
from harness.compilers.toolchain import Call, Toolchain
from harness.model.plan import Launch
from harness.support.errors import PlanError


class KernelOwner(Protocol):
    """Requests to the process that holds a kernel. Each method raises what the kernel's own toolchain raises there."""

    def compile(self, kernel: RemoteKernel, args: tuple[Any, ...] | None, arch: str) -> RemoteCompiledKernel:
        """Compile a kernel to PTX for `arch`. If `args` are given, the result also contains the packed arguments."""
        ...

    def machine_code(self, kernel: RemoteKernel, arch: str) -> bytes | None:
        """Return the cubin for `arch` that the language's own launch runs; None if the driver compiles the PTX."""
        ...

    def source(self, kernel: RemoteKernel) -> str:
        """Return the source text."""
        ...

    def expanded(self, kernel: RemoteKernel) -> str:
        """Return what of the source the kernel compiles."""
        ...

    def options(self, kernel: RemoteKernel) -> tuple[str, ...]:
        """Return the user's compiler options."""
        ...

    def identity(self, kernel: RemoteKernel) -> str | None:
        """Return a text of everything that the machine code depends on, or None if that is unknown."""
        ...


@dataclass(frozen=True)
class RemoteKernel:
    """A kernel of a plan that was made in another process."""

    name: str
    """The name that the user gave the kernel."""
    backend: str
    """Name of its language's toolchain."""
    owner: KernelOwner = field(repr=False)
    """Sends requests to the process that holds the kernel."""
    launch: int
    """Index of its launch in the plan."""
    ticket: Any = field(repr=False, compare=False)
    """Identifies the kernel to its owner."""


@dataclass(frozen=True)
class RemoteArgument:
    """An argument of a launch that has no plain form, such as a structured scalar, and stays in the other process."""

    number: int
    """Identifies the argument in its process."""
    type_name: str
    """Name of its type, for messages."""


@dataclass(frozen=True)
class RemoteCompiledKernel(CompiledKernel):
    """A kernel compiled in another process, with the packed parameters of one launch if they were packed there."""

    args: tuple[Any, ...] | None = None
    """The arguments that were packed; None if they are packed in this process."""
    words: tuple[bytes, ...] | None = None
    """Bytes of each parameter for `args`; None if the arguments do not fit or were not packed."""
    argument_error: str = ""
    """Why the arguments do not fit; empty if they do."""
    kernel: RemoteKernel | None = None
    """The kernel that was compiled."""


class RemoteToolchain(Toolchain):
    """Replaces the toolchain of a language for kernels in another process."""

    kernels = "a kernel of another process"

    def __init__(self, toolchain: Toolchain) -> None:
        self._own = toolchain
        self.name = toolchain.name
        self.tensor_maps_by_value = toolchain.tensor_maps_by_value

    def _packs_here(self, args: tuple[Any, ...]) -> bool:
        """Whether the arguments can be packed in this process.

        That is so if the code does not depend on them and none of them exists only in the other process.
        """
        return self._own.types_in_source and not any(isinstance(argument, RemoteArgument) for argument in args)

    def owns(self, kernel: object) -> bool:
        """Whether the object is a `RemoteKernel` of this language."""
        return isinstance(kernel, RemoteKernel) and kernel.backend == self.name

    def compile(self, kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
        """Compile the kernel in its process."""
        owner: KernelOwner = kernel.owner
        return owner.compile(kernel, None if self._packs_here(args) else args, arch)

    def pack(self, compiled: CompiledKernel, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        """Return the bytes of each parameter. Raises `PlanError` if an argument does not fit."""
        if self._packs_here(args):
            return self._own.pack(compiled, args)
        assert isinstance(compiled, RemoteCompiledKernel) and compiled.kernel is not None
        if compiled.args is not args:
            compiled = compiled.kernel.owner.compile(compiled.kernel, args, compiled.arch)
        if compiled.words is None:
            raise PlanError(compiled.argument_error)
        return compiled.words

    def bind(self, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
        """Return a call that launches the kernel from this process. It is compiled in its own process."""
        return bind_packed(self, launch, arrays, gpu)

    def machine_code(self, kernel: Any, arch: str) -> bytes | None:
        """Return the kernel's cubin from its process, or None."""
        owner: KernelOwner = kernel.owner
        return owner.machine_code(kernel, arch)

    def source(self, kernel: Any) -> str:
        """Return the kernel's source from its process."""
        owner: KernelOwner = kernel.owner
        return owner.source(kernel)

    def expanded(self, kernel: Any) -> str:
        """Return what of the source the kernel compiles, from its process."""
        owner: KernelOwner = kernel.owner
        return owner.expanded(kernel)

    def options(self, kernel: Any) -> tuple[str, ...]:
        """Return the user's compiler options from the kernel's process."""
        owner: KernelOwner = kernel.owner
        return owner.options(kernel)

    def identity(self, kernel: Any) -> str | None:
        """Return the kernel's identity from its process, or None."""
        owner: KernelOwner = kernel.owner
        return owner.identity(kernel)
