"""Defines the number of bytes that a variant claims to move."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """Bytes that a variant claims to move, at the `sectors` level.

    These are 32 bytes for each sector that a warp's request touches. docs/traffic.md has the rules for asynchronous
    copies.
    """

    read_bytes: int
    """Bytes read from global memory by all launches of the plan."""
    write_bytes: int
    """Bytes written to global memory by all launches of the plan."""

    @property
    def total_bytes(self) -> int:
        """Bytes read plus bytes written."""
        return self.read_bytes + self.write_bytes
