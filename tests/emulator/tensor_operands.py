"""Operands of Blackwell's products in shared memory, as the canonical layouts of PTX ISA 9.7.16.3.3 have them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from operands import Array

MODES = {"none": 0, "32": 6, "64": 4, "128": 2, "128 of 32": 1}
"""Swizzles, and the descriptor's number of each."""
SPANS = {"none": 1, "32": 2, "64": 4, "128": 8, "128 of 32": 8}
"""Pieces of 16 bytes in a row of the pattern."""
CONSTANT = 1 << 46


@dataclass(frozen=True)
class Layout:
    """Where elements of A (rows x K) or B (columns x K) lie."""

    turned: bool
    """Whether rows, or columns, are contiguous instead of steps of K."""
    swizzle: str
    leading: int
    """Leading dimension byte offset."""
    stride: int
    """Stride dimension byte offset."""

    def place(self, row: int, k: int, size: int) -> int:
        """Byte offset of an element of `size` bytes."""
        together, span = 16 // size, SPANS[self.swizzle]
        if not self.turned:
            piece, inner = divmod(k, together)
            step = self.leading if self.swizzle == "none" else 16
            offset = row % 8 * 16 * span + row // 8 * self.stride + piece * step + inner * size
        else:
            piece, inner = divmod(row, together)
            rows = 4 if self.swizzle == "128 of 32" else 8
            outer, leading = (self.stride, self.leading) if self.swizzle == "none" else (self.leading, self.stride)
            offset = piece % span * 16 + piece // span * outer + k % rows * 16 * span + k // rows * leading
            offset += inner * size
        if self.swizzle == "128 of 32":
            return offset ^ (offset >> 7 & 3) << 5
        return offset ^ (offset >> 7 & (span - 1)) << 4

    def image(self, matrix: Array, size_bytes: int) -> Array:
        """The bytes of shared memory with a matrix of patterns."""
        found = np.full(size_bytes, 0xFF, np.uint8)
        size = matrix.dtype.itemsize
        for row, k in np.ndindex(matrix.shape):
            place = self.place(row, k, size)
            found[place : place + size] = np.frombuffer(matrix[row, k].tobytes(), np.uint8)
        return found

    def descriptor(self, first: int = 0) -> int:
        """The descriptor without its address, for an operand that begins `first` bytes later."""
        word = CONSTANT | MODES[self.swizzle] << 61 | self.leading >> 4 << 16 | self.stride >> 4 << 32
        return word + (first >> 4)

    def step(self, k: int, size: int) -> int:
        """Where an operand begins that leaves out the first `k` steps of K; the swizzle depends on the address."""
        plain = self.place(0, k, size)
        return plain if self.turned or self.swizzle == "none" else k * size


def instruction_descriptor(
    rows: int,
    columns: int,
    a: int,
    b: int,
    d: int,
    negated: tuple[int, int] = (0, 0),
    turned: tuple[int, int] = (0, 0),
    more: int = 0,
) -> int:
    """The instruction descriptor, by the numbers of the types (PTX ISA 9.7.16.4.2)."""
    word = d << 4 | a << 7 | b << 10 | negated[0] << 13 | negated[1] << 14 | turned[0] << 15 | turned[1] << 16
    return word | columns >> 3 << 17 | rows >> 4 << 24 | more
