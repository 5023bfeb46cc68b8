"""The replacements of cuBLAS, cuRAND and Thrust compute what these libraries define, here in memory of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.device.cupy_runtime.libraries import cublas, curand, thrust
from harness.device.cupy_runtime.libraries.library_memory import LibraryMemory
from harness.device.driver.process import Driver


@pytest.fixture
def memory() -> LibraryMemory:
    return LibraryMemory(Driver("h100"))


@pytest.fixture
def blas(memory: LibraryMemory) -> dict[str, Any]:
    return cublas.functions(memory)


def drawn(dtype: Any, *shape: int) -> Any:
    """Numbers in column-major order."""
    random = np.random.default_rng(sum(shape))
    values = random.standard_normal(shape) + (1j * random.standard_normal(shape) if np.dtype(dtype).kind == "c" else 0)
    return np.asfortranarray(values, dtype)


KEPT: list[Any] = []


def at(array: Any) -> int:
    KEPT.append(array)  # temporary arrays live on
    return int(array.ctypes.data)


TYPES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}


def applied(matrix: Any, operation: int) -> Any:
    return (matrix, matrix.T, matrix.conj().T)[operation]


@pytest.mark.parametrize("letter", TYPES)
@pytest.mark.parametrize("operations", [(0, 0), (1, 0), (0, 2), (2, 1)])
def test_gemm(blas: dict[str, Any], letter: str, operations: tuple[int, int]) -> None:
    dtype, (m, n, k) = TYPES[letter], (4, 3, 5)
    a = drawn(dtype, *((k, m) if operations[0] else (m, k)))
    b = drawn(dtype, *((n, k) if operations[1] else (k, n)))
    c = drawn(dtype, m + 2, n)
    factors = np.array([2, -1], dtype)
    expected = 2 * applied(a, operations[0]) @ applied(b, operations[1]) - c[:m]
    rest = c[m:].copy()
    blas[f"{letter}gemm"](
        1, *operations, m, n, k, at(factors), at(a), a.shape[0], at(b), b.shape[0], at(factors[1:]), at(c), m + 2
    )
    np.testing.assert_allclose(c[:m], expected, rtol=1e-4, atol=1e-5)
    assert (c[m:] == rest).all()


def test_gemm_overwrites_nan_where_beta_is_zero(blas: dict[str, Any]) -> None:
    a, c, factors = drawn(np.float32, 2, 2), np.full((2, 2), np.nan, np.float32, "F"), np.array([1, 0], np.float32)
    blas["sgemm"](1, 0, 0, 2, 2, 2, at(factors), at(a), 2, at(a), 2, at(factors[1:]), at(c), 2)
    np.testing.assert_allclose(c, a @ a, rtol=1e-5)


def test_batches(blas: dict[str, Any]) -> None:
    a, b = (np.random.default_rng(seed).standard_normal((3, 2, 2)).astype(np.float32) for seed in (1, 2))
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    expected = (a.transpose(0, 2, 1) @ b.transpose(0, 2, 1)).transpose(0, 2, 1)
    for function in ("sgemmStridedBatched", "sgemmBatched", "gemmStridedBatchedEx"):
        c = np.full_like(a, np.nan)
        if function == "sgemmBatched":
            pointers = [np.array([at(each) for each in stack], np.uint64) for stack in (a, b, c)]
            places: tuple[Any, ...] = tuple((at(each), 2) for each in pointers)
        else:
            kind = (0,) if function.endswith("Ex") else ()
            places = tuple((at(each), *kind, 2, 4) for each in (a, b, c))
        blas[function](1, 0, 0, 2, 2, 2, at(one), *places[0], *places[1], at(zero), *places[2], 3)
        np.testing.assert_allclose(c, expected, rtol=1e-5, err_msg=function)


def test_half_precision_accumulates_in_float32(blas: dict[str, Any]) -> None:
    a = np.full((1, 4096), 1, np.float16)
    c, one, zero = np.zeros((1, 1), np.float16), np.ones(1, np.float32), np.zeros(1, np.float32)
    blas["gemmEx"](1, 0, 0, 1, 1, 4096, at(one), at(a), 2, 1, at(a), 2, 4096, at(zero), at(c), 2, 1, 68, -1)
    assert c[0, 0] == 4096


@pytest.mark.parametrize("letter", TYPES)
def test_vectors_and_one_matrix(blas: dict[str, Any], letter: str) -> None:
    dtype, conjugated = TYPES[letter], letter in "cz"
    a, x, y, factor = drawn(dtype, 3, 4), drawn(dtype, 4), drawn(dtype, 3), np.array([2], dtype)
    out = y.copy()
    blas[f"{letter}gemv"](1, 0, 3, 4, at(factor), at(a), 3, at(x), 1, at(factor), at(out), 1)
    np.testing.assert_allclose(out, 2 * (a @ x) + 2 * y, rtol=1e-4)
    out = a.copy("F")
    blas[f"{letter}gerc" if conjugated else f"{letter}ger"](1, 3, 4, at(factor), at(y), 1, at(x), 1, at(out), 3)
    np.testing.assert_allclose(out, a + 2 * np.outer(y, x.conj()), rtol=1e-4)
    out = np.zeros((4, 3), dtype, "F")
    blas[f"{letter}geam"](1, 1, 0, 4, 3, at(factor), at(a), 3, at(np.zeros(1, dtype)), at(a), 4, at(out), 4)
    np.testing.assert_allclose(out, 2 * a.T, rtol=1e-5)
    out = np.zeros((3, 4), dtype, "F")
    blas[f"{letter}dgmm"](1, 1, 3, 4, at(a), 3, at(x), 1, at(out), 3)
    np.testing.assert_allclose(out, a * x, rtol=1e-5)
    out = np.full((3, 3), 7, dtype, "F")
    blas[f"{letter}syrk"](1, 1, 0, 3, 4, at(factor), at(a), 3, at(np.zeros(1, dtype)), at(out), 3)
    np.testing.assert_allclose(np.triu(out), np.triu(2 * a @ a.T), rtol=1e-4)
    assert (out[np.tril_indices(3, -1)] == 7).all()
    result = np.zeros(1, dtype)
    blas[f"{letter}dotc" if conjugated else f"{letter}dot"](1, 2, at(x), 2, at(y), 1, at(result))
    np.testing.assert_allclose(result[0], np.vdot(x[::2], y[:2]), rtol=1e-4)
    index, magnitudes = np.zeros(1, np.int32), np.abs(x.real) + np.abs(x.imag)
    blas[f"i{letter}amax"](1, 4, at(x), 1, at(index))
    assert index[0] == 1 + magnitudes.argmax()


def test_sorts(memory: LibraryMemory) -> None:
    functions = thrust.functions(memory)
    keys = np.array([[2, np.nan, 1], [1, 5, 1]], np.float32)
    indices = np.zeros((2, 3), np.intp)
    functions["argsort"](np.dtype("f"), at(indices), at(keys), 0, (2, 3))
    assert indices.tolist() == [[2, 0, 1], [0, 2, 1]]
    order = np.zeros(3, np.intp)
    functions["lexsort"](np.dtype("f"), at(order), at(keys[::-1].copy()), 2, 3)
    assert order.tolist() == np.lexsort(keys[::-1]).tolist()
    functions["sort"](np.dtype("f"), at(keys), 0, (2, 3))
    assert keys[1].tolist() == [1, 1, 5] and np.isnan(keys[0, 2])
    with pytest.raises(NotImplementedError, match="dtype"):
        functions["sort"](np.dtype("S1"), at(keys), 0, (2, 3))


def test_random_numbers_follow_the_seed(memory: LibraryMemory) -> None:
    functions = curand.functions(memory)
    generator = functions["createGenerator"](100)
    draws = []
    for seed in (1, 1, 2):
        values = np.zeros(1000, np.float32)
        functions["setPseudoRandomGeneratorSeed"](generator, seed)
        functions["generateUniform"](generator, at(values), 1000)
        draws.append(values)
    assert (draws[0] == draws[1]).all() and (draws[0] != draws[2]).any()
    assert 0 < draws[0].min() and draws[0].max() <= 1 and abs(draws[0].mean() - 0.5) < 0.05
