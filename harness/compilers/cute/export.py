"""Takes host code and PTX out of what `cute.compile` returns."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from harness.compilers.cute.host_code import ENTRY
from harness.compilers.cute.kernel import CuteFunction
from harness.support.errors import CompileError


def exported(compiled: Any, name: str) -> CuteFunction:
    """Return a compiled function as data. Raises `CompileError` if CuTe has not kept its PTX, or cannot export it."""
    ptx = getattr(compiled, "__ptx__", None)
    if not ptx:
        raise CompileError(
            f"CuTe function {name}: CuTe has not kept its PTX; set the environment variable CUTE_DSL_KEEP=ptx before "
            "the import of cutlass"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "host.o")
        try:
            compiled.export_to_c(object_file_path=str(file), function_name=ENTRY)
            host_code = file.read_bytes()
        except Exception as error:
            raise CompileError(
                f"CuTe function {name}: its host code cannot be exported ({error}); compile it with "
                'options="--enable-tvm-ffi"'
            ) from error
    return CuteFunction(name, host_code, str(ptx))
