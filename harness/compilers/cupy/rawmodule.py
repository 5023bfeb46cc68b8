"""Compiles `cupy.RawModule` to PTX, with the kernels that its templates are instantiated for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.compilers.compiled_kernel import CompiledKernel
from harness.compilers.cupy import nvrtc
from harness.compilers.cupy.rawkernel import cached, complete_options, feature_arch, split_options
from harness.compilers.source_place import with_absolute_names, with_line_directive
from harness.compilers.toolchain import Toolchain
from harness.ptx.parsing.declarations import entry_parameters
from harness.support.errors import CompileError

_NAME = "module"
"""What messages call the source if it is not found in a file."""


def compile_rawmodule(module: Any, toolchain: Toolchain, arch: str) -> dict[str, CompiledKernel]:
    """Compile for `arch`. Returns each kernel by its name in the PTX, and those of templates by their C++ name, too.

    Raises `CompileError` with NVRTC's log, or if the module is made of machine code.
    """
    options, max_registers = split_options(tuple(module.options or ()))
    arch = feature_arch(tuple(module.options or ()), arch) or arch
    source = with_absolute_names(with_line_directive(_source_of(module)))
    expressions = tuple(module.name_expressions or ())
    complete = complete_options(options, arch)

    def build() -> bytes:
        return json.dumps(nvrtc.compile_module(source, _NAME, complete, expressions)).encode()

    ptx, lowered = json.loads(cached("nvrtc module", _NAME, source, options, complete, expressions, build))
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


def _source_of(module: Any) -> str:
    """Return the CUDA source. CuPy takes a path instead, to a file of machine code or PTX."""
    if module.code is not None:
        return str(module.code)
    raise CompileError(
        f"RawModule(path={str(Path(module.file_path))!r}) is compiled already; give its CUDA source as code=, or pass "
        "the path of its PTX"
    )
