"""Defines the number of bytes that a variant claims to move."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """Bytes that a variant claims to move, at the `sectors` level: 32 x distinct 32-byte sectors per warp request."""

    read_bytes: int
    """Bytes read from global memory by all launches of the plan."""
    write_bytes: int
    """Bytes written to global memory by all launches of the plan."""

    @property
    def total_bytes(self) -> int:
        """Bytes read plus bytes written."""
        return self.read_bytes + self.write_bytes
