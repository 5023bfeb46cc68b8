"""Lists the toolchains, and finds the one of a kernel or a variant."""

from __future__ import annotations

from typing import Any

from harness.compilers.compiled_kernel import CompiledKernel
from harness.compilers.cupy.toolchain import CupyToolchain
from harness.compilers.cute.toolchain import CuteToolchain
from harness.compilers.numba.toolchain import NumbaToolchain
from harness.compilers.ptx_text import PtxToolchain
from harness.compilers.remote_kernel import RemoteKernel, RemoteToolchain
from harness.compilers.toolchain import Toolchain
from harness.compilers.triton.toolchain import TritonToolchain
from harness.model.plan import kernel_name
from harness.model.variant import Variant
from harness.support.errors import PlanError, PluginError

TOOLCHAINS: tuple[Toolchain, ...] = (
    CupyToolchain(),
    NumbaToolchain(),
    PtxToolchain(),
    TritonToolchain(),
    CuteToolchain(),
)
"""All languages. To add one, write its file and list its toolchain here."""


def toolchain_of(kernel: object) -> Toolchain:
    """Return the toolchain that owns `kernel`. Raises `PlanError` if there is none, or more than one."""
    if isinstance(kernel, RemoteKernel):
        own = toolchain_named(kernel.backend)
        assert own is not None  # guaranteed by `check_backend`
        return RemoteToolchain(own)
    owners = [toolchain for toolchain in TOOLCHAINS if toolchain.owns(kernel)]
    if len(owners) == 1:
        return owners[0]
    what = f"kernel {kernel_name(kernel)} is a {type(kernel).__name__}"
    if owners:
        raise PlanError(f"{what}, which several toolchains own: {_listed([o.name for o in owners], 'and')}")
    raise PlanError(f"{what}; it has to be {_listed([toolchain.kernels for toolchain in TOOLCHAINS])}")


def toolchain_named(name: str) -> Toolchain | None:
    """Return the toolchain whose name is `name`, a value of `Variant.backend`; None if there is none."""
    return next((toolchain for toolchain in TOOLCHAINS if toolchain.name == name), None)


def check_backend(variant: Variant) -> None:
    """Raise `PluginError` if the variant's `backend` is not the name of a toolchain."""
    if toolchain_named(variant.backend) is None:
        names = _listed([toolchain.name for toolchain in TOOLCHAINS])
        raise PluginError(f"variant {variant.name!r} has backend {variant.backend!r}; choose {names}")


def check_kernels(variant: Variant, kernels: list[object]) -> None:
    """Raise `PlanError` if a kernel is not of the language in the variant's `backend`, which tables show."""
    for kernel in kernels:
        owner = toolchain_of(kernel)
        if owner.name != variant.backend:
            raise PlanError(
                f"the variant says backend={variant.backend!r}, but its plan launches kernel {kernel_name(kernel)}, "
                f"which is {owner.kernels}; write backend={owner.name!r}, or launch a kernel of {variant.backend}"
            )


def compile_kernel(kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
    """Compile `kernel` for `arch`, such as `sm_90`, with the toolchain that owns it (`Toolchain.compile`)."""
    return toolchain_of(kernel).compile(kernel, args, arch)


def compile_module(module: Any, arch: str) -> dict[str, CompiledKernel]:
    """Compile a module for `arch` with the toolchain that takes it, and return its kernels by their names.

    Raises `PlanError` if no toolchain takes it, and `CompileError`.
    """
    for toolchain in TOOLCHAINS:
        kernels = toolchain.compile_module(module, arch)
        if kernels is not None:
            return kernels
    taken = _listed([toolchain.modules for toolchain in TOOLCHAINS if toolchain.modules])
    raise PlanError(f"a module is a {type(module).__name__}; it has to be {taken}")


def kernel_identity(kernel: Any) -> str | None:
    """Return a text of everything that the kernel's machine code depends on; None if that is unknown."""
    return toolchain_of(kernel).identity(kernel)


def _listed(words: list[str], last: str = "or") -> str:
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
