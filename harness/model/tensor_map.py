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
"""Bytes per element of each data type of whole bytes that a tensor may have."""
NARROW_TYPES = {"b4x16": (4, 4), "b4x16_p64": (8, 4), "b6x16_p32": (8, 6)}
"""Bits per element in shared and in global memory of types of fewer bits (PTX ISA 5.5.1.1). The last two have padding
in shared memory after each 16 elements. Stores of `b6x16_p32` expect a byte for each element instead (`.b6p2x16`)."""
PADDED_BOX, PADDED_ALIGNMENT = 128, 32
"""Elements of each row of a box, of which the tensor's rows are multiples, and alignment of strides in bytes, for types
with padding."""
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
    """Data type of its elements, a key of `TENSOR_TYPES` or `NARROW_TYPES`."""
    swizzle: int = 0
    """Bytes of a box's row in shared memory within which pieces are permuted; 0 for none. Shorter rows also start this
    many bytes apart, and the bytes between them do not change."""

    def __post_init__(self) -> None:
        rank = len(self.extents)
        if not 1 <= rank <= MAX_RANK:
            self._refuse(f"has {rank} dimensions; it needs one to {MAX_RANK}")
        if len(self.strides) != rank - 1 or len(self.box) != rank:
            self._refuse(f"has {len(self.strides)} strides and a box of {len(self.box)} for {rank} dimensions")
        if self.dtype not in TENSOR_TYPES and self.dtype not in NARROW_TYPES:
            self._refuse(f"has dtype {self.dtype!r}; choose one of {', '.join((*TENSOR_TYPES, *NARROW_TYPES))}")
        if any(not 1 <= extent < 1 << 32 for extent in self.extents):
            self._refuse(f"has extents {self.extents}; each has to be at least 1 and below 2**32")
        if any(stride % PIECE_BYTES or not 0 <= stride < 1 << 40 for stride in self.strides):
            self._refuse(f"has strides {self.strides}; each has to be a multiple of {PIECE_BYTES} bytes below 2**40")
        if any(not 1 <= extent <= MAX_BOX for extent in self.box):
            self._refuse(f"has a box {self.box}; each extent has to be from 1 to {MAX_BOX}")
        if self.swizzle not in SWIZZLES:
            self._refuse(f"has swizzle {self.swizzle}; choose one of {SWIZZLES}")
        if self.element_bits > self.outer_bits:
            self._check_padded()
        if self.extents[0] * self.outer_bits % 8:
            self._refuse(f"has rows of {self.extents[0]} elements of {self.outer_bits} bits, which are no whole bytes")
        row = self.box[0] * self.element_bits // 8
        if row % PIECE_BYTES:
            self._refuse(f"has rows of {row} bytes in its box; they have to be a multiple of {PIECE_BYTES}")
        if self.swizzle and row > self.swizzle:
            self._refuse(f"has rows of {row} bytes in its box; with this swizzle they have at most {self.swizzle}")

    def _check_padded(self) -> None:
        """Check what the PTX ISA requires of types with padding (9.7.9.27.1.1)."""
        if self.box[0] != PADDED_BOX or self.extents[0] % PADDED_BOX:
            self._refuse(
                f"has rows of {self.extents[0]} elements and {self.box[0]} in its box; with dtype {self.dtype}, boxes "
                f"have rows of {PADDED_BOX} and tensors a multiple of it"
            )
        if any(stride % PADDED_ALIGNMENT for stride in self.strides):
            self._refuse(
                f"has strides {self.strides}; with dtype {self.dtype}, each is a multiple of {PADDED_ALIGNMENT}"
            )
        if self.swizzle not in (0, 128):
            self._refuse(f"has swizzle {self.swizzle}; dtype {self.dtype} has 0 or 128")

    @property
    def element_bits(self) -> int:
        """Bits of one element in shared memory."""
        narrow = NARROW_TYPES.get(self.dtype)
        return 8 * TENSOR_TYPES[self.dtype] if narrow is None else narrow[0]

    @property
    def outer_bits(self) -> int:
        """Bits of one element in global memory."""
        narrow = NARROW_TYPES.get(self.dtype)
        return 8 * TENSOR_TYPES[self.dtype] if narrow is None else narrow[1]

    @property
    def size_bytes(self) -> int:
        """Number of bytes from the tensor's first to its last one."""
        last = sum((extent - 1) * stride for extent, stride in zip(self.extents[1:], self.strides))
        return last + self.extents[0] * self.outer_bits // 8

    def _refuse(self, what: str) -> None:
        raise PlanError(f"a tensor map of buffer {self.buffer!r} {what}")
