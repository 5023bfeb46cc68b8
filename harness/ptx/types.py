"""Defines PTX's fundamental types and their widths (PTX ISA 5.2.1)."""

from __future__ import annotations

from typing import NamedTuple


class PtxType(NamedTuple):
    """A fundamental type."""

    name: str
    kind: str
    """`b` for untyped bits, `u` unsigned, `s` signed, `f` IEEE float, `bf` bfloat16, `tf` tf32, or `pred`."""
    bits: int
    """Width in bits of one element of a packed type, otherwise of the whole."""
    packed: int = 1
    """2 for the x2 types, which hold two elements in one register."""

    @property
    def total_bits(self) -> int:
        """Width in bits of a register of this type."""
        return self.bits * self.packed

    @property
    def size_bytes(self) -> int:
        """Size in memory, in bytes."""
        return self.total_bits // 8

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.kind in ("f", "bf", "tf")


TYPES: dict[str, PtxType] = {
    t.name: t
    for t in (
        *(PtxType(f"{kind}{bits}", kind, bits) for kind in "bus" for bits in (8, 16, 32, 64)),
        PtxType("b128", "b", 128),
        PtxType("f16", "f", 16),
        PtxType("f32", "f", 32),
        PtxType("f64", "f", 64),
        PtxType("bf16", "bf", 16),
        PtxType("tf32", "tf", 32),
        PtxType("f16x2", "f", 16, 2),
        PtxType("bf16x2", "bf", 16, 2),
        PtxType("s16x2", "s", 16, 2),
        PtxType("u16x2", "u", 16, 2),
        PtxType("f32x2", "f", 32, 2),
        PtxType("pred", "pred", 1),
    )
}
