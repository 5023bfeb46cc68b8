"""Numba kernels compile to PTX without a GPU, with the options of their dispatchers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numba import cuda
from sample_kernels import ARCH, SAMPLES, STAGED_ARGS, buffer, line_of, staged, twice

from harness.compilers import compile_kernel
from harness.support.errors import CompileError, PlanError


def test_numba_compiles_to_ptx() -> None:
    compiled = compile_kernel(staged, STAGED_ARGS, ARCH)
    assert (compiled.name, compiled.toolchain.name, compiled.arch) == ("staged", "numba", ARCH)
    assert f".entry {compiled.entry}(" in compiled.ptx
    assert compiled.signature == ("array(float32, 1d, C)", "array(float32, 2d, C)", "float32", "int32")
    assert len(compiled.parameters) == 7 + 9 + 1 + 1
    assert len(re.findall(r"\.shared .*\[128\]", compiled.ptx)) == 2


def test_numba_line_table_includes_lines_of_device_functions() -> None:
    ptx = compile_kernel(staged, STAGED_ARGS, ARCH).ptx
    assert f'"{SAMPLES}"' in ptx
    for text in ("tile[0, cuda.threadIdx.x] = x[i, 0]", "    return x * np.float32(2)"):
        assert re.search(rf"\.loc\s+\d+ {line_of(text)} ", ptx), text


def test_dispatcher_options_are_honoured() -> None:
    def divides(y, a):  # type: ignore[no-untyped-def]
        y[0] = a / y[1]

    args = (buffer(2), np.float32(1))
    exact = compile_kernel(cuda.jit(divides), args, ARCH).ptx
    fast = compile_kernel(cuda.jit(fastmath=True)(divides), args, ARCH).ptx
    assert "div.rn.f32" in exact
    assert "div.approx" in fast
    bounded = compile_kernel(cuda.jit(launch_bounds=(96, 2))(divides), args, ARCH).ptx
    assert re.search(r"\.maxntid\s+96", bounded)
    unoptimised = compile_kernel(cuda.jit(opt=False)(divides), args, ARCH).ptx
    assert len(unoptimised) > 1.5 * len(exact)
    assert compile_kernel(cuda.jit(max_registers=24)(divides), args, ARCH).max_registers == 24


def test_numba_errors_carry_numbas_message_and_the_users_line() -> None:
    @cuda.jit
    def untypable(y):  # type: ignore[no-untyped-def]
        y[0] = y.no_such_attribute

    with pytest.raises(CompileError) as caught:
        compile_kernel(untypable, (buffer(1),), ARCH)
    message = str(caught.value)
    assert "no_such_attribute" in message
    assert __file__ in message
    assert f"line {line_of('y[0] = y.no_such_attribute', __file__)}" in message
    assert "\x1b" not in message


def test_colours_are_taken_out_of_numbas_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("\x1b[1m\x1b[31mred\x1b[0m and plain")

    monkeypatch.setattr(cuda, "compile_ptx", fail)
    with pytest.raises(CompileError, match=r"(?m)^red and plain$"):
        compile_kernel(cuda.jit(staged.py_func), STAGED_ARGS, ARCH)


def test_a_numpy_that_numba_cannot_use_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line that names no kernel, so that a table of many tells it once."""

    def fail(*_: object, **__: object) -> None:
        return np.a_name_that_is_gone  # type: ignore[attr-defined]

    monkeypatch.setattr(cuda, "compile_ptx", fail)
    with pytest.raises(CompileError) as caught:
        compile_kernel(cuda.jit(staged.py_func), STAGED_ARGS, ARCH)
    told = r"numba-cuda [\d.]+ does not go with NumPy [\d.]+, which has no numpy.a_name_that_is_gone any more; run: .*"
    assert re.fullmatch(told + r"pip install 'numpy<\d\.\d+' .*", str(caught.value))


def test_a_misspelt_function_of_numpy_is_the_kernels_own_mistake() -> None:
    def body(y):  # type: ignore[no-untyped-def]
        y[0] = np.expf(1.0)  # type: ignore[attr-defined]

    said = r"kernel body .* did not compile with Numba:\ny\[0\] = np.expf.*\n.*has no attribute 'expf'"
    with pytest.raises(CompileError, match=said):
        compile_kernel(cuda.jit(body), (buffer(1),), ARCH)


def test_a_compile_error_names_the_line_that_does_not_compile() -> None:
    columns = 64

    def body(y):  # type: ignore[no-untyped-def]
        lane = cuda.threadIdx.x
        tile = cuda.shared.array((32, columns + 1), np.float32)
        y[lane] = tile[lane, 0]

    line = body.__code__.co_firstlineno + 2
    shown = r"tile = cuda.shared.array\(\(32, columns \+ 1\), np.float32\)\nNo implementation"
    said = rf"body \(.*test_dispatcher.py:{line}\) did not compile with Numba:\n{shown}"
    with pytest.raises(CompileError, match=said):
        compile_kernel(cuda.jit(body), (buffer(1),), ARCH)


def test_what_cannot_be_honoured_is_said() -> None:
    def body(y):  # type: ignore[no-untyped-def]
        y[0] = 1

    with pytest.raises(CompileError, match=r"links helper\.cu"):
        compile_kernel(cuda.jit(link=["helper.cu"])(body), (buffer(1),), ARCH)
    with pytest.raises(CompileError, match="extensions="):
        compile_kernel(cuda.jit(extensions=[object()])(body), (buffer(1),), ARCH)
    with pytest.raises(PlanError, match="device function"):
        compile_kernel(twice, (np.float32(1),), ARCH)
    with pytest.raises(PlanError, match=r"kernel body is a function; it has to be a cupy\.RawKernel, a function under"):
        compile_kernel(body, (buffer(1),), ARCH)


def test_a_foreign_function_is_said_to_be_missing() -> None:
    foreign = cuda.declare_device("foreign", "float32(float32)")

    @cuda.jit
    def calls(y):  # type: ignore[no-untyped-def]
        y[0] = foreign(y[1])

    with pytest.raises(CompileError, match="calls foreign, which would have to be linked"):
        compile_kernel(calls, (buffer(2),), ARCH)
