"""A listener that holds the accesses of each block."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.emulator.launch.tracing import Accesses

FIRST_LINES = (0, 1000)
"""As if A were larger than it is."""


@dataclass
class Recorder:
    """Keeps what it is told."""

    first_lines: tuple[int, ...] = FIRST_LINES
    blocks: dict[int, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    """Block -> (line, sectors, kind, delay)."""

    def deliver(self, block: int, accesses: Accesses) -> None:
        assert block not in self.blocks
        self.blocks[block] = [
            (word >> 35, (word >> 28) & 15, (word >> 32) & 7, word & ((1 << 28) - 1)) for word in accesses.tolist()
        ]
