"""What was compiled is found again, and nothing stale is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cupy
import numpy as np
import pytest
from counted_builds import Builds
from numba import cuda
from sample_kernels import ARCH, AXPY, AXPY_ARGS, axpy, buffer

from harness.compilers import compile_kernel
from harness.compilers.cupy import rawkernel


def test_a_rawkernel_is_compiled_once(builds: Builds) -> None:
    first = compile_kernel(axpy(), AXPY_ARGS, ARCH)
    assert compile_kernel(axpy(), AXPY_ARGS, ARCH) == first
    assert builds.count == 1
    for kernel, arch in (
        (axpy("-DSCALE=3"), ARCH),
        (axpy(), "sm_80"),
        (cupy.RawKernel(AXPY.replace("+=", "-="), "axpy", ("-DSCALE=2",)), ARCH),
    ):
        before = builds.count
        compile_kernel(kernel, AXPY_ARGS, arch)
        assert builds.count == before + 1


def test_one_that_is_of_a_file_is_compiled_once_for_all_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builds: Builds
) -> None:
    (tmp_path / "own.cu").write_text(AXPY)
    monkeypatch.syspath_prepend(tmp_path)
    kernel = cupy.RawKernel(f'#line 1 "own.cu"\n{AXPY}', "axpy", ("-DSCALE=2",))
    first = compile_kernel(kernel, AXPY_ARGS, ARCH)
    assert f'"{tmp_path}/own.cu"' in first.ptx
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    assert compile_kernel(kernel, AXPY_ARGS, ARCH).ptx == first.ptx
    assert builds.count == 1


def test_a_changed_header_is_noticed(tmp_path: Path, builds: Builds) -> None:
    (tmp_path / "outer.h").write_text('#include "inner.h"\n')
    (tmp_path / "inner.h").write_text("#define FACTOR 111.0f\n")
    code = '#include "outer.h"\nextern "C" __global__ void f(float* y) { y[0] *= FACTOR; }'
    kernel = cupy.RawKernel(code, "f", (f"-I{tmp_path}",))
    first = compile_kernel(kernel, (buffer(1),), ARCH)
    assert compile_kernel(kernel, (buffer(1),), ARCH) == first
    assert builds.count == 1
    (tmp_path / "inner.h").write_text("#define FACTOR 222.0f\n")
    assert compile_kernel(kernel, (buffer(1),), ARCH).ptx != first.ptx


def test_a_header_behind_a_macro_is_never_cached(tmp_path: Path, builds: Builds) -> None:
    (tmp_path / "h.h").write_text("")
    code = '#define H "h.h"\n#include H\nextern "C" __global__ void f(float* y) {}'
    for _ in range(2):
        compile_kernel(cupy.RawKernel(code, "f", ("-I", str(tmp_path))), (buffer(1),), ARCH)
    assert builds.count == 2


def test_a_corrupted_entry_is_compiled_again(builds: Builds, tmp_path: Path) -> None:
    first = compile_kernel(axpy(), AXPY_ARGS, ARCH)
    (entry,) = (tmp_path / "cache").iterdir()
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    rawkernel._known.clear()  # as in the next process
    assert compile_kernel(axpy(), AXPY_ARGS, ARCH) == first
    assert builds.count == 2


SCALE_FACTOR = 2
TABLE = np.arange(3, dtype=np.float32)


def make(constant: Any, global_constant: int = 2) -> Any:
    global SCALE_FACTOR
    SCALE_FACTOR = global_constant

    @cuda.jit(device=True)
    def inner(x):  # type: ignore[no-untyped-def]
        return x * constant

    @cuda.jit
    def outer(y):  # type: ignore[no-untyped-def]
        y[0] = inner(y[1]) + SCALE_FACTOR

    return outer


def test_a_numba_kernel_is_compiled_once_even_when_made_anew(builds: Builds) -> None:
    first = compile_kernel(make(3), (buffer(2),), ARCH)
    assert compile_kernel(make(3), (buffer(2),), ARCH).ptx == first.ptx
    assert builds.count == 1


def test_a_numba_kernels_entry_depends_on_all_that_it_refers_to(builds: Builds) -> None:
    seen = set()
    for number, kernel in enumerate(
        [make(3), make(4), make(3.0), make(np.float32(3)), make(np.float64(3)), make(3, global_constant=5)], start=1
    ):
        if number == 6:
            make(3, global_constant=5)
        else:
            make(3)
        seen.add(compile_kernel(kernel, (buffer(2),), ARCH).ptx)
        assert builds.count == number
    assert len(seen) >= 4
    compile_kernel(make(3), (buffer(2, dtype="float64"),), ARCH)
    assert builds.count == 7
    assert ".target sm_80" in compile_kernel(make(3), (buffer(2),), "sm_80").ptx
    assert builds.count == 8
