"""Device functions that are the same are compiled once, whoever made them; others are not taken for them."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda import dispatcher as numba_dispatcher
from sample_kernels import ARCH, buffer

from harness.compilers import compile_kernel
from harness.compilers.numba import shared_functions
from harness.support.cache import DIRECTORY_VARIABLE


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the device functions that Numba compiles; kernels go another way."""
    monkeypatch.setattr(shared_functions, "_compiled", OrderedDict())
    names: list[str] = []
    own = numba_dispatcher.compile_cuda

    def counted(function: Any, *args: Any, **options: Any) -> Any:
        names.append(function.__name__)
        return own(function, *args, **options)

    monkeypatch.setattr(numba_dispatcher, "compile_cuda", counted)
    return names


def made_for(size: int, factor: float = 2.0, **options: Any) -> Any:
    """A kernel with functions of its own: one knows the size, and calls the other one, which does not."""
    scale = np.float32(factor)

    @cuda.jit(device=True, **options)
    def scaled(x):  # type: ignore[no-untyped-def]
        return x * scale

    @cuda.jit(device=True)
    def summed(x, start):  # type: ignore[no-untyped-def]
        total = np.float32(0)
        for i in range(size):
            total += scaled(x[start + i])
        return total

    @cuda.jit
    def sums(y, x):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        y[i] = summed(x, i * size) + scaled(x[i])

    return sums


ARGS = (buffer(4), buffer(64, address=0x9000))


def ptx_of(kernel: Any, dtype: str = "float32") -> str:
    return compile_kernel(kernel, (ARGS[0], buffer(64, dtype=dtype, address=0x9000)), ARCH).ptx


def test_what_does_not_know_the_size_is_compiled_once_for_two_sizes(compiled: list[str]) -> None:
    ptx_of(made_for(3))
    assert sorted(compiled) == ["scaled", "summed"]
    ptx_of(made_for(5))
    assert sorted(compiled) == ["scaled", "summed", "summed"]


def test_the_code_is_what_it_would_be_alone(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def instructions(ptx: str) -> list[str]:
        # But for names, which have a running number, as words and in bytes.
        return [line for line in ptx.splitlines() if "_ZN" not in line and not line.startswith(".b8")]

    ptx_of(made_for(3))
    shared = instructions(ptx_of(made_for(5)))
    assert len(compiled) == 3
    monkeypatch.setattr(shared_functions, "_compiled", OrderedDict())
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "another cache"))
    assert instructions(ptx_of(made_for(5))) == shared
    assert len(compiled) == 5
    assert any(".loc" in line for line in shared)


def test_another_constant_is_another_function(compiled: list[str]) -> None:
    assert ptx_of(made_for(3)) != ptx_of(made_for(3, factor=3.0))
    assert compiled.count("scaled") == 2


def test_other_options_make_another_function(compiled: list[str]) -> None:
    ptx_of(made_for(3))
    ptx_of(made_for(3, fastmath=True))
    assert compiled.count("scaled") == 2


def test_other_types_make_another_function(compiled: list[str]) -> None:
    ptx_of(made_for(3))
    ptx_of(made_for(3), "float64")
    assert compiled.count("scaled") == 2


def test_another_architecture_makes_another_function(compiled: list[str]) -> None:
    for arch in ("sm_80", "sm_90"):
        compile_kernel(made_for(3), ARGS, arch)
    assert compiled.count("scaled") == 2


def test_a_global_that_has_changed_makes_another_function(compiled: list[str]) -> None:
    global _offset
    texts = []
    for value in (1.5, 1.5, 2.5):
        _offset = np.float32(value)
        moved = cuda.jit(device=True)(_moved)
        scope = {"moved": moved}
        texts.append(ptx_of(cuda.jit(type(_one)(_one.__code__, scope, f"one_{len(texts)}"))))
    assert compiled == ["_moved"] * 2
    assert "0f3FC00000" in texts[1] and "0f40200000" in texts[2]


_offset = np.float32(0)


def _moved(x):  # type: ignore[no-untyped-def]
    return x + _offset


def _one(y, x):  # type: ignore[no-untyped-def]
    y[0] = moved(x[0])  # type: ignore[name-defined]  # noqa: F821


def test_only_so_many_are_kept(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_functions, "MOST_KEPT", 1)
    for size in (3, 5, 3):
        ptx_of(made_for(size))
        assert len(shared_functions._compiled) == 1


def test_the_class_has_its_method_back_afterwards() -> None:
    own = vars(numba_dispatcher.CUDADispatcher)["compile_device"]
    with suppress(KeyError), shared_functions.shared_device_functions(((9, 0), False)):
        assert vars(numba_dispatcher.CUDADispatcher)["compile_device"] is not own
        raise KeyError
    assert vars(numba_dispatcher.CUDADispatcher)["compile_device"] is own
