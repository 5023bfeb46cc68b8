"""The launch configuration: grid and block of a kernel, and options of the emulator."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from harness.compilers import CompiledKernel
from harness.compilers.ptxas import Resources, resources
from harness.emulator.abi.layout import LANES, WARPGROUP_WARPS, coordinates
from harness.emulator.codegen.kernel_facts import ClusterFacts
from harness.emulator.memory.residency import Residency, residency
from harness.model.plan import BlockSample, Launch, in_three_dimensions, require_cluster
from harness.support.errors import CompileError, PlanError, TooManyRegisters
from harness.support.gpu_data_sheets import Gpu

SHARED_ALIGNMENT = 1024
"""Alignment of shared memory in bytes, on which swizzles depend."""


@dataclass(frozen=True)
class Geometry:
    """Grid and block, padded to three dimensions, and dynamic shared memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    cluster: tuple[int, int, int] | None = None
    """Thread blocks per cluster; None without clusters, where every block is a cluster of its own."""
    cooperative: bool = False
    """Whether all blocks are resident together and may wait for each other (`grid.sync()`)."""
    sample: BlockSample | None = None
    """The blocks that run; None for all."""
    overlaps_previous: bool = False
    """Whether the launch may begin before the previous one has ended, which only the sanitizer considers."""

    @classmethod
    def of(cls, launch: Launch) -> Geometry:
        """The geometry of a launch."""
        grid, block = in_three_dimensions(launch.grid), in_three_dimensions(launch.block)
        cluster = None if launch.cluster is None else in_three_dimensions(launch.cluster)
        return cls(
            grid, block, launch.shared_bytes, cluster, sample=launch.sample, overlaps_previous=launch.overlaps_previous
        )

    @property
    def blocks_per_cluster(self) -> int:
        """Thread blocks per cluster."""
        return math.prod(self.cluster or (1,))

    @property
    def warps(self) -> int:
        """Warps per block."""
        return -(-self.threads // LANES)

    @property
    def warp_pitch(self) -> int:
        """Difference between the warp numbers of consecutive blocks of a cluster; a multiple of four."""
        if self.blocks_per_cluster == 1:
            return self.warps
        return -(-self.warps // WARPGROUP_WARPS) * WARPGROUP_WARPS

    def shared_pitch(self, shared_bytes: int) -> int:
        """Stride of a cluster's blocks in its shared memory, for blocks with this many bytes."""
        if self.blocks_per_cluster == 1:
            return max(1, shared_bytes)
        return -(-shared_bytes // SHARED_ALIGNMENT) * SHARED_ALIGNMENT

    @property
    def clusters(self) -> int:
        """Number of clusters in the grid."""
        return self.blocks // self.blocks_per_cluster

    @property
    def chosen_clusters(self) -> npt.NDArray[np.int64] | None:
        """The clusters that run, in ascending order; None if all do. A cluster runs as a whole."""
        if self.sample is None:
            return None
        numbers = self.sample.numbers(self.grid)
        if self.cluster is None:
            return numbers
        return np.unique([self.cluster_of(int(number)) for number in numbers])

    def cluster_of(self, block: int) -> int:
        """Index of the cluster that contains a block."""
        place = coordinates(block, self.grid)
        extents = self.cluster or (1, 1, 1)
        x, y, z = (here // extent for here, extent in zip(place, extents))
        wide, high = (whole // extent for whole, extent in zip(self.grid[:2], extents))
        return x + wide * (y + high * z)

    def block_of(self, cluster: int, rank: int) -> int:
        """Index of the block with this rank in a cluster."""
        extents = self.cluster or (1, 1, 1)
        counts = (self.grid[0] // extents[0], self.grid[1] // extents[1], self.grid[2] // extents[2])
        firsts, inside = coordinates(cluster, counts), coordinates(rank, extents)
        x, y, z = (first * extent + more for first, extent, more in zip(firsts, extents, inside))
        return x + self.grid[0] * (y + self.grid[1] * z)

    @property
    def blocks(self) -> int:
        """Number of thread blocks in the grid."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads per block."""
        return math.prod(self.block)


def with_cluster(geometry: Geometry, clusters: ClusterFacts, kernel: str) -> Geometry:
    """The geometry with the cluster that the kernel requires. Raises `PlanError` if a GPU would not launch it."""
    launched, required = geometry.cluster, clusters.required
    if launched is None and required is None and clusters.explicit:
        raise PlanError(f"kernel {kernel} is to be launched in clusters (.explicitcluster); give its Launch a cluster")
    if launched is not None and required is not None and launched != required:
        raise PlanError(
            f"kernel {kernel} is launched with cluster {launched}, and is compiled for {required} (__cluster_dims__); "
            "they have to be the same"
        )
    cluster = launched or required
    if cluster is None:
        return geometry
    require_cluster(f"kernel {kernel}: its", geometry.grid, cluster)
    if clusters.most_blocks is not None and math.prod(cluster) > clusters.most_blocks:
        raise PlanError(
            f"kernel {kernel}: its cluster {cluster} has more than the {clusters.most_blocks} blocks of .maxclusterrank"
        )
    return replace(geometry, cluster=cluster)


MOST_STEPS = 1_000_000_000
"""Maximum instructions of a warp if nobody chooses a limit."""
MOST_BLOCKS = 1 << 25
"""Maximum blocks of a launch, unless the step limit is higher: that many empty blocks take half a minute."""


@dataclass(frozen=True)
class LaunchOptions:
    """Options of the execution that do not affect what is computed."""

    step_limit: int
    """Maximum instructions per warp, and maximum blocks of a launch if more than `MOST_BLOCKS`."""
    threads: int
    """Number of CPU cores to use."""
    seed: int
    """With 0 warps take turns in order; other values permute them."""
    shuffle: bool = False
    """Permute the blocks, too, and give warps turns of random lengths. Blocks then run on one core."""
    cluster_limit: int = 0
    """Maximum instructions of all warps of a cluster together; 0 for no limit."""


def residency_of(gpu: Gpu, kernel: str, geometry: Geometry, used: Resources) -> Residency:
    """Residency of the blocks of a launch on one multiprocessor. Raises `PlanError` if not even one fits."""
    shared = used.shared_bytes + geometry.dynamic_shared_bytes
    found = residency(gpu.multiprocessor, geometry.threads, used.registers, shared)
    if not found.blocks:
        raise PlanError(
            f"kernel {kernel} does not fit the {gpu.name}: a block has {geometry.threads} threads of "
            f"{used.registers} registers and {shared} bytes of shared memory; choose another --gpu"
        )
    return found


THREADS_OF_ANY_KERNEL = 256
"""Threads of a block for which a multiprocessor has registers, however many the kernel uses: 255 at most."""


def require_registers(
    kernel: str, compiled: CompiledKernel, geometry: Geometry, gpu: Gpu, most_threads: int | None
) -> None:
    """Raise `TooManyRegisters` if a multiprocessor has too few registers for a block of the launch.

    `most_threads` are the kernel's launch bounds, to which ptxas fits the registers. Only where there are none is
    ptxas asked; what it does not compile is not checked.
    """
    if geometry.threads <= THREADS_OF_ANY_KERNEL or most_threads is not None:
        return
    registers = _registers(compiled.ptx, compiled.arch, compiled.entry, compiled.max_registers)
    if registers is not None and not residency(gpu.multiprocessor, geometry.threads, registers, 0).blocks:
        raise TooManyRegisters(
            f"kernel {kernel} uses {registers} registers per thread; for a block of {geometry.threads} threads "
            f"the {gpu.name} has {gpu.multiprocessor.registers // geometry.threads // 8 * 8} (too many resources "
            "requested for launch); use smaller blocks or __launch_bounds__"
        )


@functools.lru_cache(maxsize=256)
def _registers(ptx: str, arch: str, entry: str, max_registers: int | None) -> int | None:
    """Registers per thread; None if ptxas does not compile the kernel. Kept, because every launch needs it."""
    try:
        used = resources(ptx, arch, entry, max_registers)
    except CompileError:
        return None
    return None if used is None else used.registers


def resident_clusters(compiled: CompiledKernel, geometry: Geometry, gpu: Gpu) -> int:
    """Number of a launch's clusters that a GPU holds at a time; not more than there are, if each block has an SM.

    An unknown number of registers is assumed to be small.
    """
    if geometry.blocks <= gpu.multiprocessors:
        return geometry.clusters
    used = resources(compiled.ptx, compiled.arch, compiled.entry, compiled.max_registers)
    registers = 1 if used is None else used.registers
    shared = geometry.dynamic_shared_bytes + (0 if used is None else used.shared_bytes)
    blocks = gpu.multiprocessors * residency(gpu.multiprocessor, geometry.threads, registers, shared).blocks
    return max(1, blocks // geometry.blocks_per_cluster)
