"""Describes a tensor map: how boxes of a buffer move between global and shared memory (`cp.async.bulk.tensor`)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.model.problem import ELEMENT_BYTES
from harness.support.errors import PlanError

MAX_RANK = 5
MAX_BOX = 256
PIECE_BYTES = 16
"""Alignment in bytes of strides and of a box's rows."""
TENSOR_TYPES = ELEMENT_BYTES | {"uint16": 2, "uint32": 4, "uint64": 8}
"""Bytes per element of each data type that a tensor may have."""
SWIZZLES = (0, 32, 64, 128)
"""Valid swizzles: bytes of a row within which 16-byte pieces are permuted."""


@dataclass(frozen=True)
class TensorMap:
    """An argument of a launch: a `CUtensorMap` by value, `const __grid_constant__ CUtensorMap` in CUDA C.

    Each executor encodes it in its own way. Extents begin with the innermost dimension, as in CUDA. Elements of a box
    outside the tensor are loaded as zeros and not stored. However, stores end with a whole 16-byte piece, which may
    extend beyond the tensor. Raises `PlanError` if no GPU supports such a map.
    """

    buffer: str
    """Name of the buffer at whose beginning the tensor starts."""
    extents: tuple[int, ...]
    """Extents of the tensor, in elements."""
    strides: tuple[int, ...]
    """Strides in bytes of all dimensions except the innermost. 0 if all elements along a dimension are the same."""
    box: tuple[int, ...]
    """Extents of the box that one copy moves, in elements."""
    dtype: str
    """Data type of its elements."""
    swizzle: int = 0
    """Bytes of a box's row in shared memory within which pieces are permuted; 0 for none. Shorter rows also start this
    many bytes apart, and the bytes between them do not change."""

    def __post_init__(self) -> None:
        rank = len(self.extents)
        if not 1 <= rank <= MAX_RANK:
            self._refuse(f"has {rank} dimensions; it needs one to {MAX_RANK}")
        if len(self.strides) != rank - 1 or len(self.box) != rank:
            self._refuse(f"has {len(self.strides)} strides and a box of {len(self.box)} for {rank} dimensions")
        if self.dtype not in TENSOR_TYPES:
            self._refuse(f"has dtype {self.dtype!r}; choose one of {', '.join(TENSOR_TYPES)}")
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
        return TENSOR_TYPES[self.dtype]

    @property
    def size_bytes(self) -> int:
        """Number of bytes from the tensor's first to its last one."""
        last = sum((extent - 1) * stride for extent, stride in zip(self.extents[1:], self.strides))
        return last + self.extents[0] * self.element_bytes

    def _refuse(self, what: str) -> None:
        raise PlanError(f"a tensor map of buffer {self.buffer!r} {what}")
