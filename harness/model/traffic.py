"""Defines the number of bytes that a variant claims to move."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    further_read_bytes: int = field(default=0, compare=False)
    """Most bytes that it reads in addition for some inputs, such as those of rows that it computes again."""

    def holds(self, read_bytes: int, write_bytes: int) -> bool:
        """Return whether so many bytes were claimed: exactly, but for what depends on inputs."""
        further = read_bytes - self.read_bytes
        return 0 <= further <= self.further_read_bytes and write_bytes == self.write_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes read plus bytes written."""
        return self.read_bytes + self.write_bytes
