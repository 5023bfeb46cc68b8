"""Defines the number of bytes that a variant claims to move, and those that a plan moves between devices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Link:
    """Bytes that copies move from one device to another, in this direction."""

    source: int
    """The device that sends, counted from 0."""
    destination: int
    """The device that receives."""
    size_bytes: int


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
    links: tuple[Link, ...] = ()
    """Bytes between devices: each pair that exchanges any, sorted. They are not part of the bytes read and written."""

    def holds(self, read_bytes: int, write_bytes: int, links: tuple[Link, ...] = ()) -> bool:
        """Return whether so many bytes were claimed: exactly, but for what depends on inputs."""
        further = read_bytes - self.read_bytes
        is_read = 0 <= further <= self.further_read_bytes
        return is_read and write_bytes == self.write_bytes and links == self.links

    @property
    def total_bytes(self) -> int:
        """Bytes read plus bytes written."""
        return self.read_bytes + self.write_bytes


def link_bytes(links: Iterable[Link]) -> int:
    """Return the bytes over all links."""
    return sum(link.size_bytes for link in links)


def links_in_words(links: Iterable[Link]) -> str:
    """Describe links, such as `0 to 1: 4,096, 1 to 0: 4,096`, or `none`."""
    return ", ".join(f"{link.source} to {link.destination}: {link.size_bytes:,}" for link in links) or "none"
