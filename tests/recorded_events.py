"""A listener that keeps what it is told of a run, event by event."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from harness.execution.schedule.events import KINDS, BlockEvents, EventLaunch, sectors_of


@dataclass
class RecordedEvents:
    """An `EventListener`."""

    launches: list[EventLaunch] = field(default_factory=list)
    blocks: list[dict[int, BlockEvents]] = field(default_factory=list)
    """Of each launch, by number."""
    shared: dict[int, list[npt.NDArray[np.uint8]]] = field(default_factory=dict)
    ended: int = 0
    """Launches that are over."""

    def begin(self, launch: EventLaunch) -> None:
        assert self.ended == len(self.launches)
        self.launches.append(launch)
        self.blocks.append({})

    def wants_shared(self, block: int) -> bool:
        return True

    def shared_memory(self, block: int, contents: npt.NDArray[np.uint8]) -> None:
        self.shared.setdefault(block, []).append(contents.copy())

    def deliver(self, events: BlockEvents) -> None:
        assert events.block not in self.blocks[-1]
        self.blocks[-1][events.block] = events

    def end(self) -> None:
        self.ended += 1

    def sectors(self) -> dict[tuple[str, str], int]:
        """(Buffer, kind) -> sectors of all launches."""
        found: dict[tuple[str, str], int] = {}
        for launch, blocks in zip(self.launches, self.blocks):
            for events in blocks.values():
                for access, sectors in zip(events.accesses, sectors_of(events.accesses).tolist()):
                    key = launch.buffers[access["buffer"]], KINDS[access["kind"]]
                    found[key] = found.get(key, 0) + sectors
        return found
