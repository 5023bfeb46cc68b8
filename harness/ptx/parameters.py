"""What a kernel takes at a launch."""

from __future__ import annotations

from dataclasses import dataclass

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
    """One `.param` of a kernel."""

    type: str
    """PTX's type without the dot, such as `u64` or `f32`; an aggregate is `b8`."""
    size_bytes: int
    """What a launch has to provide."""
    align_bytes: int
    """Alignment in the parameter space."""
    is_array: bool = False
    """Declared with an extent or as a vector: a struct, `__half` or the like, passed by value."""

    @property
    def description(self) -> str:
        """What to pass, in words."""
        if self.is_array:
            return f"{self.size_bytes}-byte value"
        return _C_NAMES.get(self.type, f"{self.size_bytes}-byte value")
