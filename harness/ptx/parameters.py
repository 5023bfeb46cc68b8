"""Defines a kernel's parameters, which a launch has to provide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

_C_NAMES = {
    "u8": "bool or 8-bit integer",
    "s8": "8-bit integer",
    "u16": "16-bit integer",
    "s16": "16-bit integer",
    "u32": "int32 or uint32",
    "s32": "int32",
    "f32": "float32",
    "u64": "pointer or 64-bit integer",
    "s64": "64-bit integer",
    "f64": "float64",
}


@dataclass(frozen=True)
class Parameter:
    """A `.param` of a kernel."""

    type: str
    """PTX type without the dot, such as `u64` or `f32`. Aggregates have the type `b8`."""
    size_bytes: int
    """Size in bytes that a launch must provide."""
    align_bytes: int
    """Alignment in the parameter space, in bytes."""
    is_array: bool = False
    """Whether it is declared with an extent or as a vector, such as a struct or `__half` passed by value."""
    name: str = field(default="", compare=False)
    """Name in the PTX, which does not affect how a launch passes it; empty if unknown."""

    @property
    def description(self) -> str:
        """Description of the argument to pass, for messages."""
        if self.is_array:
            return f"{self.size_bytes}-byte value"
        return _C_NAMES.get(self.type, f"{self.size_bytes}-byte value")


class Sized(Protocol):
    """Something with a size and an alignment."""

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        ...

    @property
    def align_bytes(self) -> int:
        """Alignment in bytes."""
        ...


def offsets_of(parameters: Iterable[Sized]) -> tuple[int, ...]:
    """Return the offset of each parameter in a kernel's parameter block, in bytes.

    Each begins at the next multiple of its alignment, as the members of a C struct.
    """
    offsets, end = [], 0
    for parameter in parameters:
        begin = -(-end // parameter.align_bytes) * parameter.align_bytes
        offsets.append(begin)
        end = begin + parameter.size_bytes
    return tuple(offsets)
