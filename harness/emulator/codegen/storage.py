"""Where a kernel's symbols live, and what is known of its registers before any code of it is emitted."""

from __future__ import annotations

from dataclasses import dataclass

from harness.ptx.types import PtxType


class Storage:
    """Where symbols live: byte offsets of shared and local variables, addresses of module variables and parameters."""

    def __init__(self) -> None:
        self.addresses: dict[str, tuple[str, int]] = {}
        """Symbol -> (space, address within that space)."""
        self.parameters: dict[str, int] = {}
        """Parameter of the entry -> offset in the parameter block."""
        self.static_shared_bytes = 0
        """Where dynamic shared memory begins."""
        self.shared_arrays: dict[str, int] = {}
        """Symbol in shared memory -> its number in `KernelFacts.shared_variables`."""
        self.arrays_of_registers: dict[str, str] = {}
        """Register -> the symbol in shared memory that its addresses are proven to belong to, for the sanitizer."""


@dataclass(frozen=True)
class Registers:
    """The registers of one function."""

    types: dict[str, PtxType]
    flushed: frozenset[str] = frozenset()
    """Those that never hold a subnormal float, see `flushed_registers`."""
    lasting: frozenset[str] = frozenset()
    """Those that need a place of their own in the warp's memory: some block reads them before it writes them, or the
    runtime knows where they are."""
