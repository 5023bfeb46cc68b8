"""A tensor map as data: how boxes of a buffer move between global and shared memory (`cp.async.bulk.tensor`)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.model.problem import ELEMENT_BYTES
from harness.support.errors import PlanError

MAX_RANK = 5
MAX_BOX = 256
PIECE_BYTES = 16
"""What strides, and rows of a box, are multiples of."""
SWIZZLES = (0, 32, 64, 128)
"""Bytes of a row within which pieces of 16 bytes are exchanged."""


@dataclass(frozen=True)
class TensorMap:
    """An argument of a launch: a `CUtensorMap` by value, `const __grid_constant__ CUtensorMap` in CUDA C.

    Each executor encodes it in its own way. All extents are the innermost dimension's first, as CUDA has them. What of
    a box lies outside the tensor is loaded as zeros and not stored, but stores end with a whole piece of 16 bytes, if
    need be beyond the tensor. Raises `PlanError` where no GPU has such a map.
    """

    buffer: str
    """Name of the buffer that the tensor begins with."""
    extents: tuple[int, ...]
    """Extents of the tensor, in elements."""
    strides: tuple[int, ...]
    """Bytes from one element to the next, in all dimensions but the innermost; 0 where all are the same."""
    box: tuple[int, ...]
    """Extents of what one copy moves."""
    dtype: str
    """The dtype of its elements."""
    swizzle: int = 0
    """Bytes of a row of a box in shared memory within which pieces are exchanged; 0: none. Rows of fewer bytes begin so
    many apart, too, and what lies between them stays as it is."""

    def __post_init__(self) -> None:
        rank = len(self.extents)
        if not 1 <= rank <= MAX_RANK:
            self._refuse(f"has {rank} dimensions; it needs one to {MAX_RANK}")
        if len(self.strides) != rank - 1 or len(self.box) != rank:
            self._refuse(f"has {len(self.strides)} strides and a box of {len(self.box)} for {rank} dimensions")
        if self.dtype not in ELEMENT_BYTES:
            self._refuse(f"has dtype {self.dtype!r}; choose one of {', '.join(ELEMENT_BYTES)}")
        if any(not 1 <= extent < 1 << 32 for extent in self.extents):
            self._refuse(f"has extents {self.extents}; each has to be at least 1 and below 2**32")
        if any(stride % PIECE_BYTES or not 0 <= stride < 1 << 40 for stride in self.strides):
            self._refuse(f"has strides {self.strides}; each has to be a multiple of {PIECE_BYTES} bytes below 2**40")
        if any(not 1 <= extent <= MAX_BOX for extent in self.box):
            self._refuse(f"has a box {self.box}; each extent has to be from 1 to {MAX_BOX}")
        if self.swizzle not in SWIZZLES:
            self._refuse(f"has swizzle {self.swizzle}; choose one of {SWIZZLES}")
        row = self.box[0] * self.element_bytes
        if row % PIECE_BYTES:
            self._refuse(f"has rows of {row} bytes in its box; they have to be a multiple of {PIECE_BYTES}")
        if self.swizzle and row > self.swizzle:
            self._refuse(f"has rows of {row} bytes in its box; with this swizzle they have at most {self.swizzle}")

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def size_bytes(self) -> int:
        """From the tensor's first byte to its last."""
        last = sum((extent - 1) * stride for extent, stride in zip(self.extents[1:], self.strides))
        return last + self.extents[0] * self.element_bytes

    def _refuse(self, what: str) -> None:
        raise PlanError(f"a tensor map of buffer {self.buffer!r} {what}")
