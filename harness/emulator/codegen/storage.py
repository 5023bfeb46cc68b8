"""Locations of a kernel's symbols, and facts about its registers that are determined before its code is emitted."""

from __future__ import annotations

from dataclasses import dataclass

from harness.ptx.types import PtxType


class Storage:
    """Locations of symbols: offsets of shared and local variables, addresses of module variables and parameters."""

    def __init__(self) -> None:
        self.addresses: dict[str, tuple[str, int]] = {}
        """Space and address within that space, by symbol."""
        self.parameters: dict[str, int] = {}
        """Offset in the parameter block, by parameter of the entry."""
        self.static_shared_bytes = 0
        """Offset at which dynamic shared memory begins."""
        self.shared_arrays: dict[str, int] = {}
        """Index in `KernelFacts.shared_variables`, by symbol in shared memory."""
        self.arrays_of_registers: dict[str, str] = {}
        """Symbol in shared memory that a register's addresses provably belong to, by register; for the sanitizer."""


@dataclass(frozen=True)
class Registers:
    """The registers of one function."""

    types: dict[str, PtxType]
    flushed: frozenset[str] = frozenset()
    """Registers that never hold a subnormal float, see `flushed_registers`."""
    lasting: frozenset[str] = frozenset()
    """Registers with a permanent location in the warp's memory: some block reads them before it writes them, or the
    runtime accesses them."""
