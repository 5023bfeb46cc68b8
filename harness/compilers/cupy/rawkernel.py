"""Compiles `cupy.RawKernel` and `cupy.RawModule` to PTX or machine code, with the options that CuPy gives NVRTC."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.compilers.compiled_kernel import CompiledKernel
from harness.compilers.cupy import nvrtc
from harness.compilers.cupy.headers import include_directories, included_files
from harness.compilers.source_place import has_absolute_names, with_absolute_names, with_line_directive
from harness.compilers.toolchain import Toolchain
from harness.ptx.parsing.declarations import entry_parameters
from harness.support.cache import Key, default_cache
from harness.support.errors import CompileError

_ARCH_OPTIONS = ("-arch", "--gpu-architecture")
_REGISTER_OPTIONS = ("-maxrregcount", "--maxrregcount")


def compile_rawkernel(kernel: Any, toolchain: Toolchain, arch: str) -> CompiledKernel:
    """Compile for `arch`. Arguments are checked later, by `CompiledKernel.pack`. Raises `CompileError`."""
    name, source, expressions = _source_of(kernel)
    options, max_registers = split_options(tuple(kernel.options))
    arch = feature_arch(tuple(kernel.options), arch) or arch
    ptx = _compile(name, source, options, expressions, arch)
    entries = entry_parameters(ptx)
    if name not in entries:
        raise CompileError(
            f"the source defines {', '.join(entries) or 'no kernel'}, not {name}; "
            'declare it extern "C" __global__, so that its name is not mangled'
        )
    return CompiledKernel(
        ptx=ptx,
        entry=name,
        name=name,
        toolchain=toolchain,
        arch=arch,
        parameters=entries[name],
        max_registers=max_registers,
        cooperative=bool(kernel.enable_cooperative_groups),
    )


def compile_cubin(kernel: Any, arch: str) -> bytes:
    """Return the machine code for `arch` that CuPy would get from NVRTC. Raises `CompileError`."""
    name, source, expressions = _source_of(kernel)
    options, max_registers = split_options(tuple(kernel.options))
    if max_registers is not None:
        options += (f"-maxrregcount={max_registers}",)
    return nvrtc.compile_cubin(source, name, (*_complete(options), f"-arch={arch}"), expressions)


def _source_of(kernel: Any) -> tuple[str, str, tuple[str, ...]]:
    """Return name, CUDA source and C++ names to instantiate. Raises `CompileError` if CuPy has them only on a GPU."""
    state = kernel.__getstate__()  # CuPy's record of the kernel's arguments, including hidden attributes
    name = str(kernel.name)
    for field, instead in (
        ("file_path", "give the CUDA source as code="),
        ("translate_cucomplex", "include <cupy/complex.cuh> and use complex<T>"),
        ("jitify", "leave jitify out"),
    ):
        if state.get(field):
            raise CompileError(f"kernel {name} uses RawKernel's {field}, which only a GPU's CuPy can do; {instead}")
    source = with_absolute_names(with_line_directive(str(kernel.code)))
    return name, source, tuple(state.get("name_expressions") or ())


def feature_arch(options: tuple[str, ...], arch: str) -> str | None:
    """Return the feature set of `arch` that the options require, such as `sm_90a` for `sm_90`; None if none."""
    words = iter(options)
    found = None
    for option in words:
        head, separator, value = option.partition("=")
        if head in _ARCH_OPTIONS:
            value = value if separator else next(words, "")
            requested = value.replace("compute_", "sm_")
            found = requested if requested.rstrip("af") == arch and requested != arch else None
    return found


def _compile(name: str, source: str, options: tuple[str, ...], expressions: tuple[str, ...], arch: str) -> str:
    complete = complete_options(options, arch)

    def build() -> bytes:
        return nvrtc.compile_source(source, name, complete, expressions).encode()

    return cached("nvrtc", name, source, options, complete, expressions, build)


def cached(
    kind: str,
    name: str,
    source: str,
    options: tuple[str, ...],
    complete: tuple[str, ...],
    expressions: tuple[str, ...],
    build: Callable[[], bytes],
) -> str:
    """Return the text that `build` makes of `source` with the `complete` options, from a cache if possible.

    The key has everything that the result depends on, including the files that the source includes.
    """
    files = included_files(source, options)
    if files is None:
        return build().decode()
    # NVRTC writes file names into the line table relative to the current directory.
    folder = "" if has_absolute_names(source) else os.getcwd()
    # Kernels of one file share a compilation: if #line names the file, the PTX does not contain the kernel's name.
    named = "" if source.startswith("#line") else name
    key = (kind, folder, nvrtc.identity(), named, source, "\0".join(complete), "\0".join(expressions), *files)
    ptx = _known.get(key)
    if ptx is None:
        ptx = _known[key] = default_cache().cached(kind, key, build).decode()
    return ptx


# A RawKernel is compiled once, as on a GPU, so that its PTX is not read again for each of many small problems.
_known: dict[Key, str] = {}


def complete_options(options: tuple[str, ...], arch: str) -> tuple[str, ...]:
    """Return the options with which CuPy would compile PTX for `arch`, given the user's `options`."""
    return (*_complete(options), f"-arch={arch.replace('sm_', 'compute_')}")


def _complete(options: tuple[str, ...]) -> tuple[str, ...]:
    """Add CuPy's options before and after the user's, in CuPy's order. The last one of several takes effect."""
    return (
        *_with_cupys_paths(options),
        *(f"-I{directory}" for directory in include_directories()),
        "-ftz=true",
        "--device-as-default-execution-space",
        "-lineinfo",
    )


def _with_cupys_paths(options: tuple[str, ...]) -> tuple[str, ...]:
    # Default language standard, CuPy's headers and its bundled CCCL.
    from cupy._core import core

    try:
        return tuple(core.assemble_cupy_compiler_options(options))
    except RuntimeError:  # CuPy found no CUDA headers; the folders below are searched next
        return options if any("-std=" in option for option in options) else (*options, "--std=c++17")


def split_options(options: tuple[str, ...]) -> tuple[tuple[str, ...], int | None]:
    """Remove the options for architecture, line information and registers. Returns the rest and the register limit."""
    kept: list[str] = []
    max_registers = None
    rest = iter(options)
    for option in rest:
        head, separator, value = option.partition("=")
        if head in _ARCH_OPTIONS:
            if not separator:
                next(rest, None)
        elif head in _REGISTER_OPTIONS:
            value = value if separator else next(rest, "")
            max_registers = int(value) if value.isdigit() else None
        elif option not in ("-lineinfo", "--generate-line-info"):
            kept.append(option)
    return tuple(kept), max_registers


_MODULE = "module"
"""What messages call the source if it is not found in a file."""


def compile_rawmodule(module: Any, toolchain: Toolchain, arch: str) -> dict[str, CompiledKernel]:
    """Compile for `arch`. Returns each kernel by its name in the PTX, and those of templates by their C++ name, too.

    Raises `CompileError` with NVRTC's log, or if the module is made of machine code.
    """
    options, max_registers = split_options(tuple(module.options or ()))
    arch = feature_arch(tuple(module.options or ()), arch) or arch
    source = with_absolute_names(with_line_directive(_module_source(module)))
    expressions = tuple(module.name_expressions or ())
    complete = complete_options(options, arch)

    def build() -> bytes:
        return json.dumps(nvrtc.compile_module(source, _MODULE, complete, expressions)).encode()

    ptx, lowered = json.loads(cached("nvrtc module", _MODULE, source, options, complete, expressions, build))
    entries = entry_parameters(ptx)
    names = {entry: entry for entry in entries} | {each: found for each, found in lowered.items() if found in entries}
    return {
        name: CompiledKernel(
            ptx=ptx,
            entry=entry,
            name=name,
            toolchain=toolchain,
            arch=arch,
            parameters=entries[entry],
            max_registers=max_registers,
            cooperative=bool(module.enable_cooperative_groups),
        )
        for name, entry in names.items()
    }


def _module_source(module: Any) -> str:
    """Return the CUDA source. CuPy takes a path instead, to a file of machine code or PTX."""
    if module.code is not None:
        return str(module.code)
    raise CompileError(
        f"RawModule(path={str(Path(module.file_path))!r}) is compiled already; give its CUDA source as code=, or pass "
        "the path of its PTX"
    )
