"""Toolchain for Python under `triton.jit`. Triton compiles it without a GPU; on a GPU the driver takes its PTX."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from harness.compilers.compiled_kernel import CompiledKernel
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.packed_launch import bind_packed
from harness.compilers.toolchain import Call, Toolchain
from harness.compilers.triton.kernel import TritonKernel, as_kernel, is_function
from harness.model.plan import Launch, leaves
from harness.support.errors import PlanError
from harness.support.gpu_data_sheets import WARP_LANES

if TYPE_CHECKING:
    from harness.compilers.triton.signature import Typed


class TritonToolchain(Toolchain):
    """Toolchain for functions under `triton.jit`, alone or in a `TritonKernel`."""

    name = "triton"
    kernels = "a function under triton.jit or a harness.TritonKernel"

    def owns(self, kernel: object) -> bool:
        """Whether the object is a Triton function or a `TritonKernel`, checked without importing Triton."""
        return isinstance(kernel, TritonKernel) or is_function(kernel)

    def compile(self, kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
        """Compile to PTX for `arch`. The types of `args`, and which are 1 or multiples of 16, determine the code."""
        from harness.compilers.triton.signature import has_scratch, typed

        kernel = as_kernel(kernel)
        signature = typed(kernel, args)
        known = _known.setdefault(kernel.function, {})
        key = (repr((signature, kernel.constexprs, kernel.num_warps, kernel.num_stages, kernel.options)), arch)
        if key not in known:
            known[key] = _compiled(self, kernel, signature, arch)
        scratch_bytes = known[key].scratch_bytes
        if scratch_bytes and not has_scratch(kernel, args):
            raise PlanError(
                f"kernel {kernel.name} needs scratch memory, for tensor descriptors that it makes: pass a buffer of "
                f"{scratch_bytes} bytes times the number of programs as the last argument"
            )
        return known[key]

    def pack(self, compiled: CompiledKernel, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        """Return the bytes of each parameter; constexprs have none. Scratch memory that no argument provides is null.

        Raises `PlanError` if an argument does not fit.
        """
        from harness.compilers import c_arguments
        from harness.compilers.triton.signature import CONSTEXPR, scalar

        passed = [
            scalar(name, leaf) for name, value in zip(compiled.signature, args) if name != CONSTEXPR
            for leaf in leaves(value)
        ]  # fmt: skip
        passed += args[len(compiled.signature) :]  # scratch memory
        passed += [None] * (len(compiled.parameters) - len(passed))
        return c_arguments.pack(compiled.name, compiled.parameters, tuple(passed))

    def bind(self, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
        """Return a call that launches the kernel on `gpu.stream`. Raises `CompileError` or `PlanError`."""
        return bind_packed(self, launch, arrays, gpu)

    def source(self, kernel: Any) -> str:
        """Return the Python source of the function."""
        try:
            return inspect.getsource(as_kernel(kernel).function.fn)
        except OSError:
            return "(the source is not in a file)\n"

    def options(self, kernel: Any) -> tuple[str, ...]:
        """Return constexprs and options, such as `num_warps=4`."""
        kernel = as_kernel(kernel)
        fields = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages, **kernel.options}
        return tuple(f"{name}={value}" for name, value in (*kernel.constexprs.items(), *fields.items()))

    def identity(self, kernel: Any) -> str | None:
        """Return a text of the function, of what it calls, and of its options."""
        return repr((as_kernel(kernel).function.cache_key, self.options(kernel)))


_known: MutableMapping[Any, dict[tuple[str, str], CompiledKernel]] = weakref.WeakKeyDictionary()
"""Compiled kernels. As on a GPU, later changes to a function's globals have no effect."""


def _compiled(toolchain: TritonToolchain, kernel: TritonKernel, signature: Typed, arch: str) -> CompiledKernel:
    from harness.compilers.triton.build import built
    from harness.ptx.parsing.declarations import entry_parameters
    from harness.ptx.targets import Target

    found = built(kernel, signature, arch)
    target = Target.of(found["ptx"])
    assert target is not None
    return CompiledKernel(
        ptx=found["ptx"],
        entry=found["name"],
        name=kernel.name,
        toolchain=toolchain,
        arch=target.name,
        parameters=entry_parameters(found["ptx"])[found["name"]],
        signature=tuple(signature.of(name) for name in kernel.arg_names),
        threads=WARP_LANES * kernel.num_warps,
        added_threads=WARP_LANES * (found["num_warps"] - kernel.num_warps),
        shared_bytes=found["shared"],
        blocks_per_program=found["num_ctas"],
        scratch_bytes=found["global_scratch_size"] * found["num_ctas"],
    )
