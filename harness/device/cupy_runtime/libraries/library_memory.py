"""Device memory as NumPy arrays, for what libraries do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.device.driver.functions.copies import bytes_at
from harness.device.driver.functions.streams import is_recording
from harness.device.driver.process import Driver, explain

Array = npt.NDArray[Any]


class LibraryMemory:
    """Memory of the device, or of the host if an address is not the device's, as arrays that share it."""

    def __init__(self, driver: Driver, library: str = "", current_stream: Callable[[], int] = int) -> None:
        """`current_stream` returns the handle of CuPy's current stream, by default that of the default stream."""
        self._driver, self._library, self._current_stream = driver, library, current_stream
        self._explained: set[str] = set()

    def explain_once(self, library: str, what: str) -> None:
        """Print that NumPy computes what a library does on a GPU, once for each library."""
        if library not in self._explained:
            self._explained.add(library)
            explain(f"{what} of {library}, whose machine code cannot be emulated, are computed with NumPy")

    def array(
        self, address: int, dtype: npt.DTypeLike, shape: int | tuple[int, ...], *, written: bool = False
    ) -> Array:
        """A C-contiguous array. `written` tells the sanitizer that it is about to be written.

        Raises `NotImplementedError` if the current stream records a graph, as CuPy does for calls of libraries.
        """
        if is_recording(self._driver, self._current_stream()):
            raise NotImplementedError(
                f"calls of {self._library} cannot be recorded; end the capture of the stream first"
            )
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        size = int(np.prod(extents)) * np.dtype(dtype).itemsize
        if not size:
            return np.zeros(extents, dtype)
        return bytes_at(self._driver, int(address), size, written=written).view(dtype).reshape(extents)

    def vector(self, address: int, dtype: npt.DTypeLike, count: int, step: int, *, written: bool = False) -> Array:
        """Elements `step` apart. A negative step begins at the end, as in BLAS."""
        elements = self.array(address, dtype, (count - 1) * abs(step) + 1 if count else 0, written=written)
        return elements[:: abs(step)] if step > 0 else elements[::step]

    def matrix(
        self, address: int, dtype: npt.DTypeLike, rows: int, columns: int, leading: int, *, written: bool = False
    ) -> Array:
        """A matrix in column-major order whose columns are `leading` elements apart."""
        count = leading * (columns - 1) + rows if rows and columns else 0
        elements = self.array(address, dtype, count, written=written)
        item = elements.itemsize
        return np.lib.stride_tricks.as_strided(elements, (rows, columns), (item, leading * item))

    def scalar(self, address: int, dtype: npt.DTypeLike) -> Any:
        """The number at an address."""
        return self.array(address, dtype, 1)[0]
