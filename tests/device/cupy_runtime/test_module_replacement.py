"""Changes to CuPy's modules that need no emulated driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.device.cupy_runtime.module_replacement import _find_headers_for_jitify

cupy = pytest.importorskip("cupy")


def test_jitify_gets_the_headers_of_a_program_and_compiles_none_of_its_own(tmp_path: Path) -> None:
    from cupy._core import core

    (tmp_path / "a.h").write_text("int a;")
    before, added, compiled = core.assemble_cupy_compiler_options, {}, []
    jitify = SimpleNamespace(
        _init_module=lambda: compiled.append(core.assemble_cupy_compiler_options(("-std=c++17",))),
        _add_sources=added.update,
        jitify=lambda *program: program,
    )
    _find_headers_for_jitify(jitify)
    jitify._init_module()
    assert not compiled and core.assemble_cupy_compiler_options is before
    program = "#include <a.h>", ("-std=c++17", f"-I{tmp_path}")
    assert jitify.jitify(*program) == program and added == {b"a.h": b"int a;"}


LATE = """
import cupy_backends.cuda.api.runtime as runtime
import harness
from harness.device.cupy_runtime.module_replacement import STAND_INS
import sys
before = runtime.malloc
harness.emulate()
assert runtime.malloc is before and not set(STAND_INS) & set(sys.modules)
"""


@pytest.mark.compiles
def test_an_imported_cupy_is_not_changed() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
