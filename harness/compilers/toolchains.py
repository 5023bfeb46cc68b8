"""The languages, and which of them a kernel or a variant is written in."""

from __future__ import annotations

from typing import Any

from harness.compilers.compiled_kernel import CompiledKernel
from harness.compilers.cupy.toolchain import CupyToolchain
from harness.compilers.numba.toolchain import NumbaToolchain
from harness.compilers.ptx_text import PtxToolchain
from harness.compilers.remote_kernel import RemoteKernel, RemoteToolchain
from harness.compilers.toolchain import Toolchain
from harness.model.plan import kernel_name
from harness.model.variant import Variant
from harness.support.errors import PlanError, PluginError

TOOLCHAINS: tuple[Toolchain, ...] = (CupyToolchain(), NumbaToolchain(), PtxToolchain())
"""Every language; a new one is its file and its place here."""


def toolchain_of(kernel: object) -> Toolchain:
    """The toolchain that owns `kernel`. Raises `PlanError` where none does, or more than one."""
    if isinstance(kernel, RemoteKernel):
        own = toolchain_named(kernel.backend)
        assert own is not None  # `check_backend` has seen to it
        return RemoteToolchain(own)
    owners = [toolchain for toolchain in TOOLCHAINS if toolchain.owns(kernel)]
    if len(owners) == 1:
        return owners[0]
    what = f"kernel {kernel_name(kernel)} is a {type(kernel).__name__}"
    if owners:
        raise PlanError(f"{what}, which several toolchains own: {_listed([o.name for o in owners], 'and')}")
    raise PlanError(f"{what}; it has to be {_listed([toolchain.kernels for toolchain in TOOLCHAINS])}")


def toolchain_named(name: str) -> Toolchain | None:
    """The toolchain that `Variant.backend` calls so; None where there is none."""
    return next((toolchain for toolchain in TOOLCHAINS if toolchain.name == name), None)


def check_backend(variant: Variant) -> None:
    """Raises `PluginError` where no toolchain has the name that the variant says."""
    if toolchain_named(variant.backend) is None:
        names = _listed([toolchain.name for toolchain in TOOLCHAINS])
        raise PluginError(f"variant {variant.name!r} has backend {variant.backend!r}; choose {names}")


def check_kernels(variant: Variant, kernels: list[object]) -> None:
    """Raises `PlanError` where a kernel is not of the toolchain that the variant says, so that no table calls it so."""
    for kernel in kernels:
        owner = toolchain_of(kernel)
        if owner.name != variant.backend:
            raise PlanError(
                f"the variant says backend={variant.backend!r}, but its plan launches kernel {kernel_name(kernel)}, "
                f"which is {owner.kernels}; write backend={owner.name!r}, or launch a kernel of {variant.backend}"
            )


def compile_kernel(kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
    """Compile `kernel` for `arch`, such as `sm_90`, by the toolchain that owns it. See `Toolchain.compile`."""
    return toolchain_of(kernel).compile(kernel, args, arch)


def kernel_identity(kernel: Any) -> str | None:
    """What the kernel's machine code depends on, as text; None where that cannot be told."""
    return toolchain_of(kernel).identity(kernel)


def _listed(words: list[str], last: str = "or") -> str:
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
