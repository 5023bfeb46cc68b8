"""Toolchain for kernels given as PTX text, such as handwritten PTX or the output of `nvcc --ptx`."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.compilers.compiled_kernel import CompiledKernel
from harness.compilers.launch_attributes import has_attributes, with_attributes
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.tensor_maps import native_arguments
from harness.compilers.toolchain import Call, Toolchain
from harness.model.plan import Launch
from harness.support.errors import CompileError, PlanError


@dataclass(frozen=True)
class PtxKernel:
    """A kernel given as PTX: `Launch(PtxKernel(text, "softmax"), ...)` in a variant with `backend="ptx"`.

    Pass arguments as to a `cupy.RawKernel`: the name of a buffer for a pointer, otherwise NumPy scalars of the
    parameter's size. Raises `PlanError` if `text` or `name` is not text.
    """

    text: str
    """A complete PTX module, with `.version`, `.target` and `.address_size`."""
    name: str
    """The kernel's name after `.entry`. It is mangled if a C++ compiler mangled it."""

    def __post_init__(self) -> None:
        for field, value in (("text", self.text), ("name", self.name)):
            if not isinstance(value, str) or not value.strip():
                raise PlanError(f"PtxKernel(text, name): its {field} is {value!r}; it has to be text")


class PtxToolchain(Toolchain):
    """Toolchain for `PtxKernel`. Only the emulator or the driver compiles the text."""

    name = "ptx"
    kernels = "a harness.PtxKernel"
    modules = "PTX text or the path of a PTX file"
    types_in_source = True

    def owns(self, kernel: object) -> bool:
        """Whether the object is a `PtxKernel`."""
        return isinstance(kernel, PtxKernel)

    def compile(self, kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
        """Check the text and return it. If it has no line table, its own line numbers are added.

        `args` are ignored, because the text declares the parameter types. Raises `CompileError` if there is no such
        entry, no target, a target that does not run on `arch`, or if no driver loads the text.
        """
        return _compiled(self, kernel, arch)

    def compile_module(self, module: Any, arch: str) -> dict[str, CompiledKernel] | None:
        """Return the kernels of a PTX text, or of the file at a path, which is text of one line or a `Path`.

        Raises `CompileError` if the file cannot be read, or is not PTX that `arch` runs.
        """
        if not isinstance(module, (str, os.PathLike)):
            return None
        from harness.ptx.acceptance import require_loadable

        text, file = _text_of(module)
        require_loadable(text)
        return {name: _compiled(self, PtxKernel(text, name), arch, file) for name in _entries(text, file)}

    def pack(self, compiled: CompiledKernel, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        """Return the bytes of each `.param`, in order. Raises `PlanError` if an argument does not fit its parameter."""
        from harness.compilers import c_arguments

        return c_arguments.pack(compiled.name, compiled.parameters, args)

    def bind(self, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
        """Return a call that launches the kernel natively. The driver compiles the text unchanged.

        Raises `CompileError`, and `PlanError` if the launch requests too much shared memory.
        """
        kernel = launch.kernel
        self.compile(kernel, launch.args, gpu.arch)
        return bind_ptx(kernel.text, kernel.name, launch, arrays, gpu)

    def source(self, kernel: Any) -> str:
        """Return the PTX as the user gave it."""
        return str(kernel.text)

    def identity(self, kernel: Any) -> str | None:
        """Return the name and the text, which determine the machine code."""
        return repr((kernel.name, kernel.text))


def bind_ptx(text: str, entry: str, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
    """Compile the PTX with the driver and return a call that launches it. Raises what `Toolchain.bind` raises."""
    from harness.compilers import c_arguments

    args = c_arguments.structs_by_value(launch.kernel_name, native_arguments(launch, arrays))
    return bind_module(text.encode(), entry, launch, args, gpu)


def bind_module(image: bytes, entry: str, launch: Launch, args: tuple[Any, ...], gpu: NativeGpu) -> Call:
    """Return a call that launches an entry of a module (PTX or machine code), with arguments as CuPy takes them.

    Raises what `Toolchain.bind` raises.
    """
    try:
        function = _module(image, gpu).get_function(entry)
    except Exception as error:
        what = "machine code" if b"\0" in image else "PTX"
        raise CompileError(
            f"kernel {launch.kernel_name}: the driver does not take its {what} ({error}); "
            "the command show has it compiled by ptxas, which says why"
        ) from error
    driver = gpu.cupy.cuda.driver
    limit = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    if launch.shared_bytes > driver.funcGetAttribute(limit, function.ptr):
        # More than 48 KB of static and dynamic shared memory together have to be requested explicitly.
        static_bytes = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function.ptr)
        with gpu.shared_memory_refusal_explained(launch, static_bytes):
            driver.funcSetAttribute(function.ptr, limit, launch.shared_bytes)
    if has_attributes(launch, gpu.arch):
        return with_attributes(function.ptr, launch, args, gpu)
    return lambda: function(launch.grid, launch.block, args, shared_mem=launch.shared_bytes)


def _module(image: bytes, gpu: NativeGpu) -> Any:
    """Load a module once, as CuPy does with the modules of its kernels, so that all launches share its variables."""
    if image not in gpu.modules:
        module = gpu.cupy.cuda.function.Module()
        module.load(image)
        gpu.modules[image] = module
    return gpu.modules[image]


def _text_of(module: str | os.PathLike[str]) -> tuple[str, str]:
    """Return a PTX text and the file that it comes from, which is empty if `module` is the text."""
    if isinstance(module, str) and (".entry" in module or ".version" in module or "\n" in module):
        return module, ""
    try:
        return Path(module).read_text(), str(Path(module).resolve())
    except (OSError, UnicodeDecodeError) as error:
        raise CompileError(f"the PTX file {os.fspath(module)!r} cannot be read ({error})") from error


def _entries(text: str, file: str) -> Collection[str]:
    from harness.ptx.parsing.declarations import entry_parameters

    entries = entry_parameters(text)
    if not entries:
        where = f"the file {file}" if file else "the text"
        raise CompileError(f"{where} has no kernel; a PTX module has functions that begin with .visible .entry")
    return entries.keys()


@functools.lru_cache(maxsize=128)  # a search launches the same kernels for many small problems
def _compiled(toolchain: PtxToolchain, kernel: PtxKernel, arch: str, file: str = "") -> CompiledKernel:
    """Compile the text, which begins at the first line of `file` if one is given."""
    from harness.compilers.source_place import place_of
    from harness.ptx.acceptance import require_loadable
    from harness.ptx.parsing.declarations import entry_parameters
    from harness.ptx.statements import has_line_table, with_line_table

    require_loadable(kernel.text)
    entries = entry_parameters(kernel.text)
    if kernel.name not in entries:
        raise CompileError(
            f"the PTX defines {', '.join(entries) or 'no kernel'}, not {kernel.name}; "
            "name it as it stands behind .entry"
        )
    ptx = kernel.text
    if not has_line_table(ptx):
        ptx = with_line_table(ptx, *((file, 1) if file else place_of(ptx) or (f"{kernel.name}.ptx", 1)))
    return CompiledKernel(
        ptx=ptx,
        entry=kernel.name,
        name=kernel.name,
        toolchain=toolchain,
        arch=_runnable(kernel, arch),
        parameters=entries[kernel.name],
        own_module=kernel.text,
    )


def _runnable(kernel: PtxKernel, arch: str) -> str:
    """Return the target to compile for so that `arch` runs the kernel: `arch`, or the text's own, such as `sm_90a`."""
    from harness.ptx.targets import Target

    target, here = Target.of(kernel.text), Target.named(arch)
    if target is None:
        raise CompileError(f"kernel {kernel.name}: its PTX has no .target; write .target {arch} below .version")
    if here is None or not target.runs_on(here):
        raise CompileError(
            f"kernel {kernel.name}: its PTX is for {target.name}, and is to run on {arch}; "
            f"write .target {arch}, or what it came from has to be compiled for that"
        )
    return target.name if target.suffix else arch
