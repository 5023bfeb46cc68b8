"""A kernel with its launch configuration, by which findings describe its instructions and threads."""

from __future__ import annotations

from dataclasses import dataclass

from harness.emulator.abi import layout as machine
from harness.emulator.codegen.kernel_facts import KernelFacts
from harness.emulator.launch.configuration import Geometry
from harness.emulator.launch.messages.race_words import Access
from harness.model.finding import Place


@dataclass(frozen=True)
class LaunchedKernel:
    """A kernel with its launch configuration."""

    name: str
    facts: KernelFacts
    geometry: Geometry

    def place(self, site: int, cluster: int, thread: int) -> Place:
        """The source line of an instruction, and a thread by its number in a cluster."""
        rank, own = divmod(thread, machine.LANES * self.geometry.warp_pitch)
        block = self.geometry.block_of(cluster, rank)
        file, line = self.facts.sites[site].file_and_line
        grid, threads = self.geometry.grid, self.geometry.block
        return Place(file, line, machine.coordinates(block, grid), machine.coordinates(own, threads))

    def access(self, site: int, place: Place) -> Access:
        """The access of an instruction by a thread."""
        return Access(site, self.facts.sites[site], place, self.warp(place))

    def warp(self, place: Place) -> int:
        """The number of a thread's warp in its block."""
        x, y, _ = self.geometry.block
        return (place.thread[0] + x * (place.thread[1] + y * place.thread[2])) // machine.LANES
