"""A kernel that lives in another process: it can be compiled, packed, launched and shown from here, as plain data.

A plugin's kernels stay in the process that runs the plugin's code (see `harness.execution.isolation`). Whoever compiles
one asks that process and gets PTX or a cubin, and bytes for the parameters.
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
    """The other process, as its kernels see it. All of it raises what the kernel's own toolchain raises there."""

    def compile(self, kernel: RemoteKernel, args: tuple[Any, ...] | None, arch: str) -> RemoteCompiledKernel:
        """See `Toolchain.compile`; with these arguments packed, if there are any."""
        ...

    def machine_code(self, kernel: RemoteKernel, arch: str) -> bytes | None:
        """See `Toolchain.machine_code`."""
        ...

    def source(self, kernel: RemoteKernel) -> str:
        """See `Toolchain.source`."""
        ...

    def options(self, kernel: RemoteKernel) -> tuple[str, ...]:
        """See `Toolchain.options`."""
        ...

    def identity(self, kernel: RemoteKernel) -> str | None:
        """See `Toolchain.identity`."""
        ...


@dataclass(frozen=True)
class RemoteKernel:
    """A kernel of a plan that was made in another process."""

    name: str
    """The name that the user gave it."""
    backend: str
    """The language that it is of: what its toolchain is called."""
    owner: KernelOwner = field(repr=False)
    """Where it lives."""
    launch: int
    """Its place in the plan."""
    ticket: Any = field(repr=False, compare=False)
    """What the owner finds it by."""


@dataclass(frozen=True)
class RemoteArgument:
    """A scalar of a launch that has no plain form, such as a structured one: it, too, stays where it is."""

    number: int
    """What the owner finds it by."""
    type_name: str
    """What it is, for messages."""


@dataclass(frozen=True)
class RemoteCompiledKernel(CompiledKernel):
    """What came back: PTX, and the parameters of the launch that it was compiled for, unless they are packed here."""

    args: tuple[Any, ...] | None = None
    """The arguments that are packed already; None where they are packed here."""
    words: tuple[bytes, ...] | None = None
    """The bytes of each parameter for `args`; None where they do not fit, or are not packed there."""
    misfit: str = ""
    """Why they do not fit."""
    kernel: RemoteKernel | None = None
    """What was compiled."""


class RemoteToolchain(Toolchain):
    """Stands in for another language's toolchain where the kernel is in another process."""

    kernels = "a kernel of another process"

    def __init__(self, toolchain: Toolchain) -> None:
        self._own = toolchain
        self.name = toolchain.name
        self.tensor_maps_by_value = toolchain.tensor_maps_by_value

    def _packs_here(self, args: tuple[Any, ...]) -> bool:
        """Whether these arguments are nothing to the other process: its code is the same for all, and each is here."""
        return self._own.types_in_source and not any(isinstance(argument, RemoteArgument) for argument in args)

    def owns(self, kernel: object) -> bool:
        """See `Toolchain.owns`."""
        return isinstance(kernel, RemoteKernel) and kernel.backend == self.name

    def compile(self, kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
        """See `Toolchain.compile`."""
        owner: KernelOwner = kernel.owner
        return owner.compile(kernel, None if self._packs_here(args) else args, arch)

    def pack(self, compiled: CompiledKernel, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        """See `Toolchain.pack`."""
        if self._packs_here(args):
            return self._own.pack(compiled, args)
        assert isinstance(compiled, RemoteCompiledKernel) and compiled.kernel is not None
        if compiled.args is not args:
            compiled = compiled.kernel.owner.compile(compiled.kernel, args, compiled.arch)
        if compiled.words is None:
            raise PlanError(compiled.misfit)
        return compiled.words

    def bind(self, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
        """See `Toolchain.bind`: compiled where the kernel lives, and launched from here, as plain machine code."""
        return bind_packed(self, launch, arrays, gpu)

    def machine_code(self, kernel: Any, arch: str) -> bytes | None:
        """See `Toolchain.machine_code`."""
        owner: KernelOwner = kernel.owner
        return owner.machine_code(kernel, arch)

    def source(self, kernel: Any) -> str:
        """See `Toolchain.source`."""
        owner: KernelOwner = kernel.owner
        return owner.source(kernel)

    def options(self, kernel: Any) -> tuple[str, ...]:
        """See `Toolchain.options`."""
        owner: KernelOwner = kernel.owner
        return owner.options(kernel)

    def identity(self, kernel: Any) -> str | None:
        """See `Toolchain.identity`."""
        owner: KernelOwner = kernel.owner
        return owner.identity(kernel)
