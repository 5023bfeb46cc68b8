"""GPUs by name: peak rates and on-chip sizes from their data sheets.

Peaks are for dense matrices at boost clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.support.errors import UsageError
from harness.support.memory_units import KIB, MIB

TERA, GIGA = 1e12, 1e9
WARP_LANES = 32
REGISTER_BYTES = 4
SCHEDULERS = 4
"""Schedulers per multiprocessor. Each issues one warp instruction per cycle, and has a quarter of the registers for
its own warps."""


@dataclass(frozen=True)
class Multiprocessor:
    """Resources of one streaming multiprocessor (SM), shared by its resident blocks."""

    arch: str
    """The architecture, such as `sm_90`."""
    threads: int
    blocks: int
    registers: int
    """Number of 32-bit registers."""
    l1_bytes: int
    """Size of L1 and shared memory together."""
    carve_outs_bytes: tuple[int, ...]
    """Possible sizes of shared memory; the rest is L1."""
    reserved_shared_bytes: int
    """Shared memory that the system reserves per block."""

    @property
    def most_shared_bytes_per_block(self) -> int:
        """Maximum static plus dynamic shared memory of a block; a kernel that needs more cannot be launched."""
        return self.carve_outs_bytes[-1] - self.reserved_shared_bytes

    @property
    def on_chip_bytes(self) -> int:
        """Registers and shared memory of a block that has the multiprocessor to itself."""
        return 4 * self.registers + self.most_shared_bytes_per_block


def _carve_outs(*kib: int) -> tuple[int, ...]:
    return tuple(KIB * size for size in kib)


# CUDA C++ Programming Guide, technical specifications per compute capability, and its sections on shared memory.
VOLTA = Multiprocessor("sm_70", 2048, 32, 65536, 128 * KIB, _carve_outs(0, 8, 16, 32, 64, 96), 0)
TURING = Multiprocessor("sm_75", 1024, 16, 65536, 96 * KIB, _carve_outs(32, 64), 0)
AMPERE = Multiprocessor("sm_80", 2048, 32, 65536, 192 * KIB, _carve_outs(0, 8, 16, 32, 64, 100, 132, 164), KIB)
ADA = Multiprocessor("sm_89", 1536, 24, 65536, 128 * KIB, _carve_outs(0, 8, 16, 32, 64, 100), KIB)
HOPPER = Multiprocessor(
    "sm_90", 2048, 32, 65536, 256 * KIB, _carve_outs(0, 8, 16, 32, 64, 100, 132, 164, 196, 228), KIB
)
# "NVIDIA Blackwell Tuning Guide": the same memories as Hopper, of compute capability 10.0.
BLACKWELL = Multiprocessor(
    "sm_100", 2048, 32, 65536, 256 * KIB, _carve_outs(0, 8, 16, 32, 64, 100, 132, 164, 196, 228), KIB
)


@dataclass(frozen=True)
class Gpu:
    """One GPU's peaks and sizes."""

    name: str
    """Display name."""
    memory_bytes_per_s: float
    """Peak DRAM bandwidth."""
    float32_flops: float
    """Peak float32 FLOP per second without tensor cores."""
    tensor_flops: Mapping[str, float]
    """Peak FLOP per second on tensor cores by dtype, with float32 accumulation. Unsupported dtypes are absent."""
    multiprocessor: Multiprocessor
    multiprocessors: int
    l2_bytes: int
    l2_partitions: int
    """Number of L2 partitions, each of which serves some of the SMs. A line from another partition is cached in
    both."""
    source: str
    """Source of the figures."""


def _sixteen_bits(tera: float) -> dict[str, float]:
    return {"float16": tera * TERA, "bfloat16": tera * TERA}


def _and_eight(tera: float) -> dict[str, float]:
    """Add e4m3, which is twice as fast as float16 on Blackwell, Hopper and Ada."""
    return _sixteen_bits(tera) | {"e4m3": 2 * tera * TERA}


# Where a datasheet gives tensor figures with sparsity only, half of them. That the L2 of an A100 and of an H100 has two
# partitions stands in the white papers of their architectures ("NVIDIA A100 Tensor Core GPU Architecture", "NVIDIA H100
# Tensor Core GPU Architecture"), as do the L2 sizes and the numbers of SMs; those of Ada stand in "NVIDIA Ada GPU
# Architecture". An H200 is an H100 with another memory; that all 60 MB of its L2 are enabled it says itself
# (cudaDeviceProp.l2CacheSize). A B200 reports 132,644,864 bytes of L2 in the same way; "NVIDIA Blackwell Tuning Guide"
# gives 126 MB. Its two dies, with 74 of 80 SMs each, have a partition each. Its float32 rate is an eighth of that of an
# HGX B200, which has eight.
GPUS = {
    "h200": Gpu(
        "H200 SXM", 4.8 * TERA, 67 * TERA, _and_eight(989.5), HOPPER, 132, 60 * MIB, 2,
        "NVIDIA H200 Tensor Core GPU datasheet",
    ),
    "h100": Gpu(
        "H100 SXM", 3.35 * TERA, 67 * TERA, _and_eight(989.5), HOPPER, 132, 50 * MIB, 2,
        "NVIDIA H100 Tensor Core GPU datasheet",
    ),
    "b200": Gpu(
        "B200 SXM", 8 * TERA, 75 * TERA, _and_eight(2250), BLACKWELL, 148, 132_644_864, 2,
        "NVIDIA HGX B200 and DGX B200 datasheets",
    ),
    "a100": Gpu(
        "A100 SXM 80 GB", 2039 * GIGA, 19.5 * TERA, _sixteen_bits(312), AMPERE, 108, 40 * MIB, 2,
        "NVIDIA A100 Tensor Core GPU datasheet",
    ),
    "l40s": Gpu("L40S", 864 * GIGA, 91.6 * TERA, _and_eight(362.05), ADA, 142, 96 * MIB, 1, "NVIDIA L40S datasheet"),
    "l4": Gpu(
        "L4", 300 * GIGA, 30.3 * TERA, _and_eight(121), ADA, 58, 48 * MIB, 1, "NVIDIA L4 Tensor Core GPU datasheet"
    ),
    "rtx4090": Gpu(
        "GeForce RTX 4090", 1008 * GIGA, 82.6 * TERA, _and_eight(165.2), ADA, 128, 72 * MIB, 1,
        "NVIDIA Ada GPU architecture, table 2",
    ),
    "v100": Gpu(
        "V100 SXM2", 900 * GIGA, 15.7 * TERA, {"float16": 125 * TERA}, VOLTA, 80, 6 * MIB, 1,
        "NVIDIA V100 Tensor Core GPU datasheet",
    ),
    "t4": Gpu(
        "T4", 320 * GIGA, 8.1 * TERA, {"float16": 65 * TERA}, TURING, 40, 4 * MIB, 1,
        "NVIDIA T4 Tensor Core GPU datasheet",
    ),
}  # fmt: skip


def gpu_like(device_name: str) -> Gpu | None:
    """The GPU in the table that matches a driver's name, such as `NVIDIA GeForce RTX 4090`; None if none does."""
    words = device_name.lower().replace("rtx ", "rtx").replace("-", " ").split()
    return next((found for name, found in GPUS.items() if name in words), None)


def gpu(name: str) -> Gpu:
    """The GPU with that name, ignoring case. Raises `UsageError`, which lists them all."""
    found = GPUS.get(name.lower())
    if found is None:
        raise UsageError(f"no GPU {name!r} in the table; choose one of {', '.join(GPUS)}")
    return found


def usual_gpu(arch: str) -> Gpu:
    """The GPU that is emulated for an architecture, such as `sm_100a`, if none is chosen: a B200, or else an H200."""
    return GPUS["b200"] if arch.rstrip("af") == BLACKWELL.arch else GPUS["h200"]


def attainable_flops(gpu: Gpu, peak_flops: float, intensity: float) -> float:
    """The roofline at `intensity` FLOP per byte (Williams, Waterman and Patterson 2009, "Roofline")."""
    return min(peak_flops, intensity * gpu.memory_bytes_per_s)
