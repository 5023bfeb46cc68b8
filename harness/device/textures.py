"""CUDA arrays, and the records of texture and surface objects that kernels read.

An array is a plain row-major range of device memory. A GPU orders the texels of an array in tiles, so that it reads
fewer sectors for neighbours in two dimensions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from harness.device.memory import Allocation
from harness.emulator.abi import texture_layout as tex

_ROW_ALIGNMENT = 32
"""Rows of an array begin at sectors."""


@dataclass(frozen=True)
class TexelFormat:
    """What a texel consists of."""

    kind: int
    """`SIGNED`, `UNSIGNED` or `FLOAT` of `abi/texture_layout.py`."""
    channel_bytes: int
    channels: int

    @property
    def texel_bytes(self) -> int:
        """Bytes of a texel."""
        return self.channel_bytes * self.channels

    @property
    def is_known(self) -> bool:
        """Whether CUDA has this format."""
        sizes = (2, 4) if self.kind == tex.FLOAT else (1, 2, 4)
        known = self.kind in (tex.SIGNED, tex.UNSIGNED, tex.FLOAT)
        return known and self.channel_bytes in sizes and self.channels in (1, 2, 4)


@dataclass(frozen=True)
class TexelRange:
    """Texels in device memory."""

    address: int
    format: TexelFormat
    extents: tuple[int, int, int]
    """Texels of a row, rows of a slice, slices; 1 for dimensions that it lacks."""
    row_bytes: int
    """From row to row."""
    slice_bytes: int
    """From slice to slice."""


@dataclass(eq=False)
class CudaArray:
    """An array of CUDA, with the extents and flags with which it was created: 0 for dimensions that it lacks."""

    format: TexelFormat
    width: int
    height: int
    depth: int
    """Depth, or number of layers, or of faces."""
    flags: int
    allocation: Allocation

    @staticmethod
    def row_bytes_for(format: TexelFormat, width: int) -> int:
        """Bytes from row to row."""
        return -(-width * format.texel_bytes // _ROW_ALIGNMENT) * _ROW_ALIGNMENT

    @property
    def texels(self) -> TexelRange:
        """Its texels."""
        row = self.row_bytes_for(self.format, self.width)
        extents = (self.width, max(1, self.height), max(1, self.depth))
        return TexelRange(self.allocation.address, self.format, extents, row, row * extents[1])


@dataclass(frozen=True)
class Sampling:
    """How a texture is read."""

    modes: tuple[int, int, int] = (tex.CLAMP,) * 3
    """Address mode of each dimension."""
    is_linear: bool = False
    """Whether neighbouring texels are filtered."""
    is_normalized: bool = False
    """Whether coordinates are normalized."""
    reads_floats: bool = False
    """Whether integers are read as floats in [0, 1] or [-1, 1]."""
    border: Sequence[float] = (0.0, 0.0, 0.0, 0.0)


def record(magic: int, texels: TexelRange, sampling: Sampling) -> bytes:
    """The record of a texture or a surface (`TEXTURE_MAGIC`, `SURFACE_MAGIC`)."""
    # The other modes need normalized coordinates.
    modes = [mode if sampling.is_normalized or mode == tex.BORDER_COLOR else tex.CLAMP for mode in sampling.modes]
    words = (
        magic, texels.address, *texels.extents, texels.row_bytes, texels.slice_bytes, texels.format.channels,
        texels.format.channel_bytes, texels.format.kind, *modes, sampling.is_linear, sampling.is_normalized,
        sampling.reads_floats,
    )  # fmt: skip
    return struct.pack(f"<{len(words)}q4f", *words, *sampling.border)
