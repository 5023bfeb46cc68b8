"""Level 1 of BLAS: sums, norms, dot products and scaling of vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.device.cupy_runtime.libraries.library_memory import Array, LibraryMemory

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
