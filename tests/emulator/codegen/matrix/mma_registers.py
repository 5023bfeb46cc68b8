"""Which registers of which lanes hold which elements of the matrices of `mma`."""

from __future__ import annotations

import numpy as np
from operands import Array

GROUP, PLACE = np.arange(32) >> 2, np.arange(32) & 3
"""PTX ISA 9.7.14.5.6 to 8 call them groupID and threadID_in_group."""


def packed(low: Array, high: Array) -> Array:
    return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)


def registers_of_a(kind: str, a: Array) -> Array:
    if kind == "tf32":
        parts = [a[:, GROUP + 8 * (i % 2), PLACE + 4 * (i // 2)] for i in range(a.shape[2] // 2)]
    else:
        places = [(GROUP + 8 * (i % 2), 2 * PLACE + 8 * (i // 2)) for i in range(a.shape[2] // 4)]
        parts = [packed(a[:, row, column], a[:, row, column + 1]) for row, column in places]
    return np.ascontiguousarray(np.stack(parts, 1))


def registers_of_b(kind: str, b: Array) -> Array:
    if kind == "tf32":
        parts = [b[:, PLACE + 4 * i, GROUP] for i in range(b.shape[1] // 4)]
    else:
        rows = [2 * PLACE + 8 * i for i in range(b.shape[1] // 8)]
        parts = [packed(b[:, row, GROUP], b[:, row + 1, GROUP]) for row in rows]
    return np.ascontiguousarray(np.stack(parts, 1))


def registers_of_c(c: Array) -> Array:
    if c.dtype == np.uint16:
        parts = [packed(c[:, GROUP + 8 * i, 2 * PLACE], c[:, GROUP + 8 * i, 2 * PLACE + 1]) for i in range(2)]
    else:
        parts = [c[:, GROUP + 8 * (i // 2), 2 * PLACE + i % 2] for i in range(4)]
    return np.ascontiguousarray(np.stack(parts, 1))
