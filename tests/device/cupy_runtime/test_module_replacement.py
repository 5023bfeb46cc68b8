"""Changes to CuPy's modules that need no emulated driver."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from harness.device.cupy_runtime.module_replacement import _name_architecture

cupy = pytest.importorskip("cupy")


def test_jitify_is_given_an_architecture_for_its_first_program() -> None:
    from cupy._core import core

    before, options = core.assemble_cupy_compiler_options, []
    jitify = SimpleNamespace(_init_module=lambda: options.extend(core.assemble_cupy_compiler_options(("-std=c++17",))))
    _name_architecture(jitify)
    jitify._init_module()
    assert "-std=c++17" in options and options[-1] == "-arch=compute_90"
    assert core.assemble_cupy_compiler_options is before


LATE = """
import cupy_backends.cuda.api.runtime as runtime
import harness
from harness.device.cupy_runtime.stand_in_module import STAND_INS
import sys
before = runtime.malloc
harness.emulate()
assert runtime.malloc is before and not set(STAND_INS) & set(sys.modules)
"""


@pytest.mark.compiles
def test_an_imported_cupy_is_not_changed() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
