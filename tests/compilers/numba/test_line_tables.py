"""Line tables name lines and no variables; debug=True keeps both."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from numba import cuda
from numba.cuda.cudadrv import nvvm
from numba.cuda.debuginfo import CUDADIBuilder
from sample_kernels import ARCH, STAGED_ARGS, buffer, staged, twice

from harness.compilers import compile_kernel
from harness.compilers.numba import dispatcher, shared_functions
from harness.compilers.numba.dispatcher import line_tables_without_variables

REPLACED = ("mark_variable", "update_variable", "_di_subroutine_type")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The LLVM IR that libNVVM is given."""
    given: list[str] = []
    compile_ir = nvvm.compile_ir

    def kept(llvm_ir: str | list[str], **options: Any) -> Any:
        given.extend([llvm_ir] if isinstance(llvm_ir, str) else llvm_ir)
        return compile_ir(llvm_ir, **options)

    monkeypatch.setattr(nvvm, "compile_ir", kept)
    return given


def compile_anew(**options: Any) -> str:
    """PTX of the sample kernel and its device function, as objects that nobody has compiled yet."""
    scope = {**staged.py_func.__globals__, "twice": cuda.jit(device=True)(twice.py_func)}
    function = type(staged.py_func)(staged.py_func.__code__, scope, "staged")
    return compile_kernel(cuda.jit(**options)(function), STAGED_ARGS, ARCH).ptx


def calls(modules: list[str]) -> int:
    """What tells debuggers of variables: kernels and device functions together."""
    return sum(line.lstrip().startswith('call void @"llvm.dbg.') for text in modules for line in text.splitlines())


def test_libnvvm_hears_of_lines_and_of_no_variables(modules: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert ".loc" in compile_anew()
    assert len(modules) > 1 and any("!DILocation(" in text for text in modules)
    assert calls(modules) == 0
    assert not any("!DIBasicType(" in text for text in modules)
    # numba-cuda by itself says them: once it does not, there is nothing to replace.
    modules.clear()
    monkeypatch.setattr(dispatcher, "line_tables_without_variables", nullcontext)
    monkeypatch.setattr(shared_functions, "_compiled", OrderedDict())
    compile_anew(fastmath=True)  # another kernel, which no cache knows
    assert calls(modules) > 0
    assert any("!DIBasicType(" in text for text in modules)


def test_a_debugger_gets_variables(modules: list[str]) -> None:
    @cuda.jit(debug=True, opt=False)
    def doubled(y):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        y[i] = 2 * y[i]

    compile_kernel(doubled, (buffer(4),), ARCH)
    assert calls(modules) > 0
    assert any("!DIBasicType(" in text for text in modules)


def test_the_class_has_its_methods_back_afterwards() -> None:
    own = [vars(CUDADIBuilder)[name] for name in REPLACED]
    with suppress(KeyError), line_tables_without_variables():
        assert all(vars(CUDADIBuilder)[name] is not method for name, method in zip(REPLACED, own))
        raise KeyError
    assert [vars(CUDADIBuilder)[name] for name in REPLACED] == own
