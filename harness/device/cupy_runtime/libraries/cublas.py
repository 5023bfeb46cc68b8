"""Products of matrices and vectors, as `cupy_backends.cuda.libs.cublas` computes them.

Matrices are in column-major order. Sums are in NumPy's order, so results differ from cuBLAS's by rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.device.cupy_runtime.libraries.library_memory import Array, LibraryMemory

_CONSTANTS = {
    "CUBLAS_OP_N": 0, "CUBLAS_OP_T": 1, "CUBLAS_OP_C": 2, "CUBLAS_POINTER_MODE_HOST": 0,
    "CUBLAS_POINTER_MODE_DEVICE": 1, "CUBLAS_SIDE_LEFT": 0, "CUBLAS_SIDE_RIGHT": 1, "CUBLAS_FILL_MODE_LOWER": 0,
    "CUBLAS_FILL_MODE_UPPER": 1, "CUBLAS_DIAG_NON_UNIT": 0, "CUBLAS_DIAG_UNIT": 1, "CUBLAS_GEMM_DEFAULT": -1,
    "CUBLAS_GEMM_DEFAULT_TENSOR_OP": 99, "CUBLAS_GEMM_DFALT": -1, "CUBLAS_GEMM_DFALT_TENSOR_OP": 99,
    "CUBLAS_DEFAULT_MATH": 0, "CUBLAS_TENSOR_OP_MATH": 1, "CUBLAS_COMPUTE_16F": 64, "CUBLAS_COMPUTE_16F_PEDANTIC": 65,
    "CUBLAS_COMPUTE_32F": 68, "CUBLAS_COMPUTE_32F_PEDANTIC": 69, "CUBLAS_COMPUTE_32F_FAST_16F": 74,
    "CUBLAS_COMPUTE_32F_FAST_16BF": 75, "CUBLAS_COMPUTE_32F_FAST_TF32": 77, "CUBLAS_COMPUTE_64F": 70,
    "CUBLAS_COMPUTE_64F_PEDANTIC": 71, "CUBLAS_COMPUTE_32I": 72, "CUBLAS_COMPUTE_32I_PEDANTIC": 73,
}  # fmt: skip
_VERSION = 120900
_LETTERS: dict[str, Any] = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
_TRANSPOSED, _CONJUGATED = 1, 2
_UPPER, _RIGHT = 1, 1


def _data_type(number: int) -> Any:
    """The type for a number of `cudaDataType`."""
    import ml_dtypes

    types: dict[int, Any] = {
        0: np.float32, 1: np.float64, 2: np.float16, 3: np.int8, 4: np.complex64, 5: np.complex128, 10: np.int32,
        14: ml_dtypes.bfloat16,
    }  # fmt: skip
    return np.dtype(types[number])


def _compute_type(element: Any) -> npt.DTypeLike:
    return np.float32 if element.itemsize == 2 else np.int32 if element == np.int8 else element


def _applied(matrix: Array, operation: int) -> Array:
    """op(A)."""
    return matrix if not operation else matrix.T if operation == _TRANSPOSED else matrix.conj().T


class _Products:
    """GEMM in all its forms: C = alpha op(A) op(B) + beta C."""

    def __init__(self, memory: LibraryMemory) -> None:
        self._memory = memory

    def _multiply(
        self, transa: int, transb: int, m: int, n: int, k: int, alpha: Any, a: tuple[int, Any, int],
        b: tuple[int, Any, int], beta: Any, c: tuple[int, Any, int],
    ) -> None:  # fmt: skip
        """One product; `a`, `b` and `c` are address, type and leading dimension."""
        self._memory.explain_once("cuBLAS", "products of matrices")
        left = _applied(self._memory.matrix(a[0], a[1], *((k, m) if transa else (m, k)), a[2]), transa)
        right = _applied(self._memory.matrix(b[0], b[1], *((n, k) if transb else (k, n)), b[2]), transb)
        out = self._memory.matrix(c[0], c[1], m, n, c[2], written=True)
        kind = _compute_type(np.dtype(a[1]))
        product = alpha * (left.astype(kind) @ right.astype(kind))
        out[...] = product if not beta else product + beta * out

    def gemm(self, dtype: Any) -> Callable[..., None]:
        scalar = self._memory.scalar

        def call(
            handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, A: int, lda: int, B: int,
            ldb: int, beta: int, C: int, ldc: int,
        ) -> None:  # fmt: skip
            factors = scalar(alpha, dtype), scalar(beta, dtype)
            a, b, c = (A, dtype, lda), (B, dtype, ldb), (C, dtype, ldc)
            self._multiply(transa, transb, m, n, k, factors[0], a, b, factors[1], c)

        return call

    def gemm_batched(self, dtype: Any) -> Callable[..., None]:
        gemm, array = self.gemm(dtype), self._memory.array

        def call(
            handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, A: int, lda: int, B: int,
            ldb: int, beta: int, C: int, ldc: int, count: int,
        ) -> None:  # fmt: skip
            pointers = (array(each, np.uint64, count).tolist() for each in (A, B, C))
            for a, b, c in zip(*pointers):
                gemm(handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)

        return call

    def gemm_strided(self, dtype: Any) -> Callable[..., None]:
        gemm, item = self.gemm(dtype), np.dtype(dtype).itemsize

        def call(
            handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, A: int, lda: int, strideA: int,
            B: int, ldb: int, strideB: int, beta: int, C: int, ldc: int, strideC: int, count: int,
        ) -> None:  # fmt: skip
            for index in range(count):
                a, b, c = A + index * strideA * item, B + index * strideB * item, C + index * strideC * item
                gemm(handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)

        return call

    def gemm_ex(
        self, handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, A: int, Atype: int, lda: int,
        B: int, Btype: int, ldb: int, beta: int, C: int, Ctype: int, ldc: int, computeType: int = 0, algo: int = 0,
    ) -> None:  # fmt: skip
        kind = _compute_type(_data_type(Ctype))
        factors = self._memory.scalar(alpha, kind), self._memory.scalar(beta, kind)
        a, b, c = (A, _data_type(Atype), lda), (B, _data_type(Btype), ldb), (C, _data_type(Ctype), ldc)
        self._multiply(transa, transb, m, n, k, factors[0], a, b, factors[1], c)

    def gemm_strided_ex(
        self, handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, A: int, Atype: int, lda: int,
        strideA: int, B: int, Btype: int, ldb: int, strideB: int, beta: int, C: int, Ctype: int, ldc: int,
        strideC: int, count: int, computeType: int = 0, algo: int = 0,
    ) -> None:  # fmt: skip
        sizes = [_data_type(each).itemsize for each in (Atype, Btype, Ctype)]
        for index in range(count):
            a, b, c = (
                at + index * step * size for at, step, size in zip((A, B, C), (strideA, strideB, strideC), sizes)
            )
            self.gemm_ex(
                handle, transa, transb, m, n, k, alpha, a, Atype, lda, b, Btype, ldb, beta, c, Ctype, ldc
            )  # fmt: skip


def _matrix_functions(memory: LibraryMemory, letter: str, dtype: Any) -> dict[str, Callable[..., None]]:
    """Transposition, scaling, and products of one matrix with itself or a vector."""
    matrix, vector, scalar = memory.matrix, memory.vector, memory.scalar

    def geam(
        handle: int, transa: int, transb: int, m: int, n: int, alpha: int, A: int, lda: int, beta: int, B: int,
        ldb: int, C: int, ldc: int,
    ) -> None:  # fmt: skip
        total = np.zeros((m, n), dtype)
        for factor, transposed, address, leading in ((alpha, transa, A, lda), (beta, transb, B, ldb)):
            if scalar(factor, dtype):
                extents = (n, m) if transposed else (m, n)
                total += scalar(factor, dtype) * _applied(matrix(address, dtype, *extents, leading), transposed)
        matrix(C, dtype, m, n, ldc, written=True)[...] = total

    def dgmm(handle: int, mode: int, m: int, n: int, A: int, lda: int, x: int, incx: int, C: int, ldc: int) -> None:
        factors = vector(x, dtype, n if mode == _RIGHT else m, incx)
        product = matrix(A, dtype, m, n, lda) * (factors if mode == _RIGHT else factors[:, None])
        matrix(C, dtype, m, n, ldc, written=True)[...] = product

    def syrk(
        handle: int, uplo: int, trans: int, n: int, k: int, alpha: int, A: int, lda: int, beta: int, C: int, ldc: int
    ) -> None:  # fmt: skip
        a = _applied(matrix(A, dtype, *((k, n) if trans else (n, k)), lda), trans)
        out = matrix(C, dtype, n, n, ldc, written=True)
        kept = scalar(beta, dtype) * out if scalar(beta, dtype) else np.zeros_like(out)
        result = scalar(alpha, dtype) * (a @ a.T) + kept
        where = np.triu_indices(n) if uplo == _UPPER else np.tril_indices(n)
        out[where] = result[where]

    def gemv(
        handle: int, trans: int, m: int, n: int, alpha: int, A: int, lda: int, x: int, incx: int, beta: int, y: int,
        incy: int,
    ) -> None:  # fmt: skip
        a = _applied(matrix(A, dtype, m, n, lda), trans)
        out = vector(y, dtype, a.shape[0], incy, written=True)
        product = scalar(alpha, dtype) * (a @ vector(x, dtype, a.shape[1], incx))
        out[...] = product + scalar(beta, dtype) * out if scalar(beta, dtype) else product

    def ger(conjugated: bool) -> Callable[..., None]:
        def call(
            handle: int, m: int, n: int, alpha: int, x: int, incx: int, y: int, incy: int, A: int, lda: int
        ) -> None:
            right = vector(y, dtype, n, incy)
            product = np.outer(vector(x, dtype, m, incx), right.conj() if conjugated else right)
            matrix(A, dtype, m, n, lda, written=True)[...] += scalar(alpha, dtype) * product

        return call

    outer = {"geru": ger(False), "gerc": ger(True)} if letter in "cz" else {"ger": ger(False)}
    return {"geam": geam, "dgmm": dgmm, "syrk": syrk, "gemv": gemv, **outer}


_REAL: dict[str, tuple[str, Any]] = {"c": ("s", np.float32), "z": ("d", np.float64)}
"""Letter and type of the parts of a complex number."""


def _size(x: Array) -> Any:
    """The magnitudes of numbers, which BLAS takes to be |real| + |imaginary|."""
    return np.abs(x.real) + np.abs(x.imag)


def vector_functions(memory: LibraryMemory, letter: str, dtype: Any) -> dict[str, Callable[..., None]]:
    """The functions of one type by name."""
    vector, scalar = memory.vector, memory.scalar
    real_letter, real = _REAL.get(letter, ("", dtype))

    def reduction(result_type: Any, reduce: Callable[[Array], Any]) -> Callable[..., None]:
        def call(handle: int, n: int, x: int, incx: int, result: int) -> None:
            memory.array(result, result_type, 1, written=True)[0] = reduce(vector(x, dtype, n, incx))

        return call

    def dot(conjugated: bool) -> Callable[..., None]:
        def call(handle: int, n: int, x: int, incx: int, y: int, incy: int, result: int) -> None:
            left = vector(x, dtype, n, incx)
            product = np.dot(left.conj() if conjugated else left, vector(y, dtype, n, incy))
            memory.array(result, dtype, 1, written=True)[0] = product

        return call

    def axpy(handle: int, n: int, alpha: int, x: int, incx: int, y: int, incy: int) -> None:
        vector(y, dtype, n, incy, written=True)[...] += scalar(alpha, dtype) * vector(x, dtype, n, incx)

    def scal(factor_type: Any) -> Callable[..., None]:
        def call(handle: int, n: int, alpha: int, x: int, incx: int) -> None:
            vector(x, dtype, n, incx, written=True)[...] *= scalar(alpha, factor_type)

        return call

    dots = {"dotu": dot(False), "dotc": dot(True)} if real_letter else {"dot": dot(False)}
    named = {
        f"i{letter}amax": reduction(np.int32, lambda x: 1 + np.argmax(_size(x))),
        f"i{letter}amin": reduction(np.int32, lambda x: 1 + np.argmin(_size(x))),
        f"{real_letter}{letter}asum": reduction(real, lambda x: _size(x).sum()),
        f"{real_letter}{letter}nrm2": reduction(real, np.linalg.norm),
        f"{letter}axpy": axpy,
        f"{letter}scal": scal(dtype),
        **{f"{letter}{name}": function for name, function in dots.items()},
    }
    if real_letter:
        named[f"{letter}{real_letter}scal"] = scal(real)
    return named


def functions(memory: LibraryMemory) -> dict[str, Any]:
    """The contents of `cupy_backends.cuda.libs.cublas`."""
    products = _Products(memory)
    pointer_mode, math_mode, handles = [0], [0], itertools.count(1)
    contents: dict[str, Any] = {
        **_CONSTANTS,
        "create": lambda: next(handles),
        "destroy": lambda handle: None,
        "getVersion": lambda handle: _VERSION,
        "getPointerMode": lambda handle: pointer_mode[0],
        "setPointerMode": lambda handle, mode: pointer_mode.__setitem__(0, mode),
        "setStream": lambda handle, stream: None,
        "getStream": lambda handle: 0,
        "getMathMode": lambda handle: math_mode[0],
        "setMathMode": lambda handle, mode: math_mode.__setitem__(0, mode),
        "gemmEx": products.gemm_ex,
        "sgemmEx": products.gemm_ex,
        "gemmStridedBatchedEx": products.gemm_strided_ex,
    }
    for letter, dtype in _LETTERS.items():
        contents[f"{letter}gemm"] = products.gemm(dtype)
        contents[f"{letter}gemmBatched"] = products.gemm_batched(dtype)
        contents[f"{letter}gemmStridedBatched"] = products.gemm_strided(dtype)
        for name, function in _matrix_functions(memory, letter, dtype).items():
            contents[f"{letter}{name}"] = function
        contents.update(vector_functions(memory, letter, dtype))
    return contents
