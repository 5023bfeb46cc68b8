"""Arrays in shared memory and their elements are named as in the kernel's source."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.emulator.codegen.kernel_facts import SharedVariable, Site
from harness.emulator.launch.messages.shared_array_names import SharedArrays
from harness.ptx.instructions import SourceLine

CUDA = """
__global__ void k(float* y) {
    __shared__ float red[128], tile[8][16];
    __shared__ __align__(16) unsigned short halves[64];
    __shared__ float4 vectors[4];
    extern __shared__ float rest[];
}
"""
NUMBA = """
from numba import cuda, float32, float64

@cuda.jit
def other(y):
    unused = cuda.shared.array(4, float32)

@cuda.jit
def k(y):
    first = cuda.shared.array(128, float32)
    tile = cuda.shared.array(shape=SHAPE, dtype=float64)
    wide = cuda.shared.array(shape=(64,), dtype=float64)
    tile[0, 1] = first[0] + wide[1]
"""


def arrays(path: Path, text: str, line: int, *variables: SharedVariable) -> SharedArrays:
    path.write_text(text)
    return SharedArrays.of(variables, [Site("ld", "ld.shared.f32", 1, SourceLine(str(path), line))])


@pytest.mark.parametrize(
    ("name", "offset", "target", "element"),
    [
        ("red", 256, "shared memory red", "red[64]"),
        ("_ZZ1kE6halves", 6, "shared memory halves", "halves[3]"),
        ("tile", 4, "shared memory tile", None),
        ("vectors", 16, "shared memory vectors", None),
        ("of_a_header", 4, "shared memory of_a_header", None),
    ],
)
def test_an_array_of_cuda(tmp_path: Path, name: str, offset: int, target: str, element: str | None) -> None:
    found = arrays(tmp_path / "k.cu", CUDA, 3, SharedVariable(name, 1024, 512))
    assert (found.target(1024 + offset), found.element(1024 + offset)) == ((target, offset), element)


def test_dynamic_memory_is_not_called_by_its_symbol_which_covers_several_arrays(tmp_path: Path) -> None:
    found = arrays(tmp_path / "k.cu", CUDA, 3, SharedVariable("red", 0, 512), SharedVariable("rest", 512, 0))
    assert (found.target(52_256), found.element(52_256)) == (("dynamic shared memory", 51_744), None)


def test_two_declarations_that_differ_leave_elements_unknown(tmp_path: Path) -> None:
    found = arrays(tmp_path / "k.cu", CUDA + "__shared__ double red[2];", 3, SharedVariable("red", 0, 512))
    assert (found.target(8), found.element(8)) == (("shared memory red", 8), None)


SYMBOLS = [SharedVariable(f"_cudapy_smem_{n}", 1024 * n, 1024) for n in (11, 9, 10)]


def test_arrays_of_numba_are_numbered_in_the_order_of_their_declarations(tmp_path: Path) -> None:
    found = arrays(tmp_path / "k.py", NUMBA, 13, *SYMBOLS)
    names = [(found.target(1024 * n)[0], found.element(1024 * n + 16)) for n in (9, 10, 11)]
    assert names == [
        ("shared memory first", "first[4]"),
        ("shared memory tile", None),
        ("shared memory wide", "wide[2]"),
    ]


def test_arrays_of_numba_that_other_functions_declare_keep_their_symbols(tmp_path: Path) -> None:
    found = arrays(tmp_path / "k.py", NUMBA, 13, *SYMBOLS[:2])
    assert found.target(9 * 1024)[0] == "shared memory _cudapy_smem_9"
