"""Sorting, as `cupy.cuda.thrust` does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.device.cupy_runtime.libraries.library_memory import LibraryMemory

_SORTED_KINDS = "biufc"


def functions(memory: LibraryMemory) -> dict[str, Any]:
    """The contents of `cupy.cuda.thrust`."""

    def require_sortable(dtype: Any, error: Callable[[str], Exception], what: str) -> Any:
        memory.explain_once("Thrust", "sorts")
        if np.dtype(dtype).kind not in _SORTED_KINDS:
            raise error(f"Sorting {what} with dtype '{dtype}' is not supported")
        return dtype

    def sort(dtype: Any, data_start: int, keys_start: int, shape: tuple[int, ...]) -> None:
        element = require_sortable(dtype, NotImplementedError, "arrays")
        memory.array(data_start, element, tuple(shape), written=True).sort(axis=-1)

    def argsort(dtype: Any, idx_start: int, data_start: int, keys_start: int, shape: tuple[int, ...]) -> None:
        element = require_sortable(dtype, NotImplementedError, "arrays")
        data = memory.array(data_start, element, tuple(shape))
        indices = memory.array(idx_start, np.intp, tuple(shape), written=True)
        indices[...] = np.argsort(data, axis=-1, kind="stable")

    def lexsort(dtype: Any, idx_start: int, keys_start: int, k: int, n: int) -> None:
        element = require_sortable(dtype, TypeError, "keys")
        keys = memory.array(keys_start, element, (k, n))
        memory.array(idx_start, np.intp, n, written=True)[:] = np.lexsort(keys)

    return {
        "available": True, "get_build_version": lambda: 0, "sort": sort, "argsort": argsort, "lexsort": lexsort,
    }  # fmt: skip
