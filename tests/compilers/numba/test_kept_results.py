"""What is kept while Numba compiles changes the time that it takes, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from counted_builds import Builds
from llvmlite import ir
from numba import cuda
from sample_kernels import ARCH, STAGED_ARGS, staged, twice

from harness.compilers import compile_kernel
from harness.compilers.numba import dispatcher, kept_results
from harness.support.cache import DIRECTORY_VARIABLE

_RUNNING_NUMBER = re.compile(r"(?<=B)\d+v\d+(?=B)|(?<=B)v\d+(?=B)|(?<=smem_)\d+")
"""Of what Numba names: functions and shared arrays."""


def compiled_lines() -> list[str]:
    """Of the kernel and its device function, compiled anew. Numba leaves the order of declarations to chance."""
    scope = {**staged.py_func.__globals__, "twice": cuda.jit(device=True)(twice.py_func)}
    function = type(staged.py_func)(staged.py_func.__code__, scope, "staged")
    lines = _RUNNING_NUMBER.sub("", compile_kernel(cuda.jit(function), STAGED_ARGS, ARCH).ptx).splitlines()
    return sorted(line for line in lines if not line.startswith(".b8"))  # the same names in bytes, for debuggers


def test_ptx_and_its_line_table_are_the_same(monkeypatch: pytest.MonkeyPatch, builds: Builds, tmp_path: Path) -> None:
    kept = compiled_lines()
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "another cache"))
    monkeypatch.setattr(dispatcher, "kept_results", nullcontext)
    assert compiled_lines() == kept
    assert builds.count == 2
    assert any(".loc" in line for line in kept)


def test_the_installed_versions_have_all_that_is_replaced_and_have_it_back_afterwards() -> None:
    found = kept_results._replacements()
    assert [(owner.__name__, name) for owner, name, _, _ in found] == [
        ("DIValue", "__hash__"),
        ("MDValue", "__hash__"),
        ("BaseContext", "get_abi_sizeof"),
        ("TargetConfig", "values"),
        ("CUDACodeLibrary", "llvm_strs"),
    ]
    with suppress(KeyError), kept_results.kept_results():
        assert [vars(owner)[name] for owner, name, _, _ in found] == [instead for *_, instead in found]
        raise KeyError
    assert [vars(owner)[name] for owner, name, _, _ in found] == [own for _, _, own, _ in found]


def test_a_size_is_asked_once_but_of_a_type_that_is_known_by_name_every_time() -> None:
    asked: list[str] = []

    def own(context: Any, kind: Any) -> int:
        asked.append(str(kind))
        return len(asked)

    size: Callable[[Any, Any], int] = kept_results._sized_once(own)
    context = SimpleNamespace()
    named = ir.Context().get_identified_type("named")
    for kind in (ir.IntType(32), ir.ArrayType(named, 2), ir.DoubleType()):
        size(context, kind)
        size(context, kind)
    assert asked == ["i32", '[2 x %"named"]', '[2 x %"named"]', "double"]
    assert size(SimpleNamespace(), ir.IntType(32)) == 5  # another target has sizes of its own


def test_a_device_function_is_written_once_for_all_kernels_that_call_it() -> None:
    class Module:
        written = 0

        def __str__(self) -> str:
            self.written += 1
            return "text"

    class Library:
        def __init__(self, *modules: Module) -> None:
            self.modules = modules
            self._llvm_strs: list[str] | None = None

    strings = kept_results._written_once(property()).fget
    own, other, shared = Module(), Module(), Module()
    library = Library(own, shared, shared)
    assert strings(library) == strings(library) == ["text"] * 3
    assert strings(Library(other, shared)) == ["text"] * 2
    assert (own.written, other.written, shared.written) == (1, 1, 1)


def test_a_configuration_has_the_same_values_in_the_same_order() -> None:
    from numba.cuda.flags import CUDAFlags

    flags = CUDAFlags()
    plain = list(flags.values().items())
    flags.debuginfo = True
    own = list(flags.values().items())
    assert own != plain
    with kept_results.kept_results():
        assert list(flags.values().items()) == own
        assert list(CUDAFlags().values().items()) == plain
