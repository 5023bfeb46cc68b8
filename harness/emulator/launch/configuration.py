"""What a kernel is launched with: its grid and block, and how the emulator is to run them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from harness.emulator.abi.layout import LANES, WARPGROUP_WARPS, coordinates
from harness.emulator.codegen.cluster_facts import ClusterFacts
from harness.model.plan import require_cluster
from harness.support.errors import PlanError

SHARED_ALIGNMENT = 1024
"""Bytes: swizzles look at addresses within so many."""


@dataclass(frozen=True)
class Geometry:
    """Grid and block, padded to three dimensions, and dynamic shared memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    cluster: tuple[int, int, int] | None = None
    """Thread blocks of a cluster; None where nobody asks for clusters, and every block is one."""

    @property
    def blocks_per_cluster(self) -> int:
        """Thread blocks that run together."""
        return math.prod(self.cluster or (1,))

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return -(-self.threads // LANES)

    @property
    def warp_pitch(self) -> int:
        """How far apart the numbers of the warps of a cluster's blocks are. Warpgroups begin at multiples of four."""
        if self.blocks_per_cluster == 1:
            return self.warps
        return -(-self.warps // WARPGROUP_WARPS) * WARPGROUP_WARPS

    def shared_pitch(self, shared_bytes: int) -> int:
        """How far apart the blocks of a cluster are in its shared memory, each with so many bytes."""
        if self.blocks_per_cluster == 1:
            return max(1, shared_bytes)
        return -(-shared_bytes // SHARED_ALIGNMENT) * SHARED_ALIGNMENT

    @property
    def clusters(self) -> int:
        """Clusters in the grid."""
        return self.blocks // self.blocks_per_cluster

    def cluster_of(self, block: int) -> int:
        """The number of the cluster that a block is in."""
        place = coordinates(block, self.grid)
        extents = self.cluster or (1, 1, 1)
        x, y, z = (here // extent for here, extent in zip(place, extents))
        wide, high = (whole // extent for whole, extent in zip(self.grid[:2], extents))
        return x + wide * (y + high * z)

    def block_of(self, cluster: int, rank: int) -> int:
        """The number of the block that has this rank in its cluster."""
        extents = self.cluster or (1, 1, 1)
        counts = (self.grid[0] // extents[0], self.grid[1] // extents[1], self.grid[2] // extents[2])
        firsts, inside = coordinates(cluster, counts), coordinates(rank, extents)
        x, y, z = (first * extent + more for first, extent, more in zip(firsts, extents, inside))
        return x + self.grid[0] * (y + self.grid[1] * z)

    @property
    def blocks(self) -> int:
        """Thread blocks in the grid."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads per block."""
        return math.prod(self.block)


def with_cluster(geometry: Geometry, clusters: ClusterFacts, kernel: str) -> Geometry:
    """The geometry with the cluster that the kernel asks for. Raises `PlanError` where a GPU does not launch it."""
    asked, required = geometry.cluster, clusters.required
    if asked is None and required is None and clusters.explicit:
        raise PlanError(f"kernel {kernel} is to be launched in clusters (.explicitcluster); give its Launch a cluster")
    if asked is not None and required is not None and asked != required:
        raise PlanError(
            f"kernel {kernel} is launched with cluster {asked}, and is compiled for {required} (__cluster_dims__); "
            "they have to be the same"
        )
    cluster = asked or required
    if cluster is None:
        return geometry
    require_cluster(f"kernel {kernel}: its", geometry.grid, cluster)
    if clusters.most_blocks is not None and math.prod(cluster) > clusters.most_blocks:
        raise PlanError(
            f"kernel {kernel}: its cluster {cluster} has more than the {clusters.most_blocks} blocks of .maxclusterrank"
        )
    return replace(geometry, cluster=cluster)


MOST_BLOCKS = 1 << 25
"""Of a launch, unless the limit of steps is higher: empty ones take half a minute."""


@dataclass(frozen=True)
class LaunchOptions:
    """How to run, as opposed to what."""

    step_limit: int
    """Instructions that one warp may execute, and blocks that a launch may have, if more than `MOST_BLOCKS`."""
    threads: int
    """CPU cores to use."""
    seed: int
    """0: warps take turns in order; other values permute them."""
    shuffle: bool = False
    """The seed permutes the blocks, too, and warps have turns of drawn lengths. Blocks then run on one core."""
    cluster_limit: int = 0
    """Instructions that all warps of a cluster may execute together; 0: any number."""
