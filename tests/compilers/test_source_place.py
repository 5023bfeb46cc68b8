"""Compile errors and line tables name the user's own file and line."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import cupy
import pytest
from sample_kernels import ARCH, AXPY_ARGS, SAMPLES, axpy, buffer, line_of

from harness.compilers import compile_kernel
from harness.compilers.source_place import has_absolute_names, with_absolute_names, with_line_directive
from harness.support.errors import CompileError


def test_line_table_names_the_users_file_and_line() -> None:
    compiled = compile_kernel(axpy(), AXPY_ARGS, ARCH)
    assert f'.file\t1 "{SAMPLES}"' in compiled.ptx
    assert re.search(rf"\.loc\s+1 {line_of('y[i] += a * x[i] * SCALE')} ", compiled.ptx)


def test_compile_error_carries_the_log_with_the_users_line() -> None:
    code = r"""
    extern "C" __global__ void broken(float* y) {
        y[0] = undeclared_here;
    }
    """
    kernel = cupy.RawKernel(code, "broken")
    line = line_of("y[0] = undeclared_here;", __file__)
    with pytest.raises(CompileError) as caught:
        compile_kernel(kernel, (buffer(1),), ARCH)
    assert 'identifier "undeclared_here" is undefined' in str(caught.value)
    assert f"{__file__}({line}): error" in str(caught.value)


def test_a_source_that_is_in_no_file_keeps_its_own_lines() -> None:
    code = "\n".join(["", 'extern "C" __global__ void broken(float* y) {', "    y[0] = " + "not" + "_there;", "}"])
    with pytest.raises(CompileError, match=r"broken\.cu\(3\): error"):
        compile_kernel(cupy.RawKernel(code, "broken"), (buffer(1),), ARCH)


def test_a_cuda_file_beside_the_module_is_named_in_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernel.cu").write_text('// a comment\nextern "C" __global__ void f(float* y) {\n    y[0] = oops;\n}\n')
    (tmp_path / "module_beside_kernel.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("module_beside_kernel")
    try:
        kernel = cupy.RawKernel("#define N 3\n" + (tmp_path / "kernel.cu").read_text(), "f")
        with pytest.raises(CompileError, match=re.escape(f"{tmp_path}/kernel.cu(3): error")):
            compile_kernel(kernel, (buffer(1),), ARCH)
    finally:
        del sys.modules["module_beside_kernel"]


def scaled(factor: int) -> cupy.RawKernel:
    """A kernel as a helper builds it: definitions put before a template with values filled in."""
    body = f"""
    extern "C" __global__ void scaled(float* y, int n) {{
        int first = blockIdx.x * blockDim.x + threadIdx.x;
        for (int i = first; i < n; i += blockDim.x) {{
            y[i] *= {factor};  // here it is filled in
            y[i] += not_declared_by_anybody;
        }}
    }}
    """
    return cupy.RawKernel("#define UNUSED 1\n#define TWICE 2\n" + body, "scaled")


def test_a_kernel_that_a_helper_builds_is_found_in_the_helper() -> None:
    line = line_of("y[i] += not_declared_by_anybody;", __file__)
    with pytest.raises(CompileError, match=re.escape(f"{__file__}({line}): error")):
        compile_kernel(scaled(3), (buffer(1), 4), ARCH)


def test_a_text_of_which_a_file_has_few_lines_keeps_its_own() -> None:
    # Only its first line stands in a file, this one.
    code = """extern "C" __global__ void f(float* y) { y[0] = 0; }""" + "".join(
        f"\n__device__ int number_{n}() {{ return {n}; }}" for n in range(6)
    )
    assert with_line_directive(code) == code


def test_a_users_own_line_directive_stands() -> None:
    code = r"""#line 70 "mine.cu"
    extern "C" __global__ void f(float* y) { y[0] = oops; }
    """
    with pytest.raises(CompileError, match=r"mine\.cu\(70\): error"):
        compile_kernel(cupy.RawKernel(code, "f"), (buffer(1),), ARCH)


def test_relative_names_of_files_become_absolute_where_they_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kernel_of_this_test.cu").write_text("// nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    code = '#line 1 "mine/kernel_of_this_test.cu"\nint a;\n#line 7 "elsewhere/kernel_of_this_test.cu"\nint b;\n'
    found = code.replace("mine/", f"{tmp_path}/mine/")
    assert with_absolute_names(code) == found
    assert with_absolute_names(found) == found
    assert not has_absolute_names(found), "one is nowhere"
    assert has_absolute_names(found.partition("#line 7")[0]) and not has_absolute_names(f"int c;\n{found}")


def test_a_file_that_is_edited_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = '\nextern "C" __global__ void edited_in_this_test(float* y) { y[threadIdx.x] = 4711.0f; }\n'
    path = tmp_path / "edited_in_this_test.py"
    path.write_text(f'CODE = """{code}"""\n')
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("edited_in_this_test")
    assert with_line_directive(code).startswith(f'#line 1 "{path}"')
    path.write_text(f'# One more line.\nCODE = """{code}"""\n')
    assert with_line_directive(code).startswith(f'#line 2 "{path}"')
