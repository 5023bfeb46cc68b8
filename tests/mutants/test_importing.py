"""What two mutants have in common is the same to Numba, and what tells them apart is not."""

from __future__ import annotations

import importlib
import inspect
import shutil
from collections.abc import Iterator
from types import ModuleType

import pytest

from harness.compilers.numba.function_identity import function_identity
from tests.mutants.importing import digested, mutants_folder

MODULE = """
from numba import cuda

@cuda.jit(device=True)
def grown(value):
    return value + 1

@cuda.jit(device=True)
def scaled(value):
    return value * {factor}
"""
DIGESTS = ("0123456789abcdef", "fedcba9876543210")


@pytest.fixture
def modules() -> Iterator[list[ModuleType]]:
    folders = [mutants_folder() / digested("importing", digest) for digest in DIGESTS]
    try:
        for factor, folder in enumerate(folders, start=2):
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").write_text("")
            (folder / "functions.py").write_text(MODULE.format(factor=factor))
        importlib.invalidate_caches()
        yield [importlib.import_module(f"{folder.name}.functions") for folder in folders]
    finally:
        for folder in folders:
            shutil.rmtree(folder)


def test_functions_common_to_two_mutants_are_compiled_once(modules: list[ModuleType]):
    identities = [function_identity(module.grown) for module in modules]
    assert identities[0] is not None
    assert identities[0] == identities[1]


def test_functions_that_differ_between_mutants_are_not_mixed_up(modules: list[ModuleType]):
    doubled, tripled = (function_identity(module.scaled) for module in modules)
    assert doubled is not None and tripled is not None
    assert doubled != tripled


def test_a_function_s_lines_are_found_though_its_file_does_not_exist(modules: list[ModuleType]):
    assert "value + 1" in inspect.getsource(modules[1].grown.py_func)
