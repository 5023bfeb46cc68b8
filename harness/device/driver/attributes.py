"""The attributes of the emulated device by number of `CUdevice_attribute`, as a driver of version 13.0 reports them."""

from __future__ import annotations

from harness.support.gpu_data_sheets import Gpu
from harness.support.memory_units import KIB

DRIVER_VERSION = 13000

_HOPPER = {
    1: 1024,  # threads per block
    2: 1024,  # block dimensions
    3: 1024,
    4: 64,
    5: 2147483647,  # grid dimensions
    6: 65535,
    7: 65535,
    8: 48 * KIB,  # shared memory per block
    9: 64 * KIB,  # constant memory
    10: 32,  # threads per warp
    11: 2147483647,  # pitch
    12: 65536,  # registers per block
    13: 1980000,  # clock rate in kHz
    14: 512,  # alignment of textures
    15: 1,  # copies overlap with kernels
    19: 1,  # host memory can be mapped
    # Extents of textures and surfaces
    21: 131072, 22: 131072, 23: 65536, 24: 16384, 25: 16384, 26: 16384, 27: 32768, 28: 32768, 29: 2048, 30: 512,
    31: 1,  # concurrent kernels
    32: 1,  # ECC
    34: 1,  # PCI device
    36: 2619000,  # memory clock in kHz
    37: 5120,  # memory bus in bits
    39: 2048,  # threads per multiprocessor
    40: 3,  # copy engines
    41: 1,  # unified addressing
    42: 32768, 43: 2048, 44: 1, 45: 32768, 46: 32768, 47: 8192, 48: 8192, 49: 32768, 51: 32, 52: 32768, 53: 32768,
    54: 2046, 55: 32768, 56: 131072, 57: 65536, 58: 16384, 59: 16384, 60: 16384, 61: 32768, 62: 2048, 63: 32768,
    64: 32768, 65: 2048, 66: 32768, 67: 32768, 68: 2046, 69: 268435456, 70: 131072, 71: 65000, 72: 2097120, 73: 32768,
    74: 32768, 77: 32768,
    75: 9,  # compute capability
    76: 0,
    78: 1,  # stream priorities
    79: 1,  # L1 caches global
    80: 1,  # and local memory
    81: 228 * KIB,  # shared memory per multiprocessor
    82: 65536,  # registers per multiprocessor
    83: 1,  # managed memory
    87: 2,  # float32 rate / float64 rate
    89: 1,  # managed memory from host and device at once
    90: 1,  # compute preemption
    91: 1,  # host pointers of registered memory are device pointers
    95: 1,  # cooperative launch
    97: 227 * KIB,  # shared memory per block on request
    99: 1,  # host memory can be registered
    106: 32,  # blocks per multiprocessor
    109: 134217728,
    111: KIB,  # reserved shared memory per block
    113: 1,
    115: 1,  # memory pools
    120: 1,  # clusters
    122: 0,
    126: 4,
    127: 1,  # tensor maps
    129: 1,  # unified function pointers
    131: -1,
}  # fmt: skip
"""Attributes of an H100. Other GPUs share them, unless `_own_attributes` says otherwise. Those that are absent up to
`LAST_ATTRIBUTE` are 0: not supported here, such as virtual memory management and interprocess communication."""
LAST_ATTRIBUTE = 147

MEMORY_BYTES = 80 * KIB**3
"""Memory of the emulated device. Allocations fail earlier if the machine has less."""


def device_attribute(gpu: Gpu, number: int) -> int | None:
    """The value of a `CUdevice_attribute`; None if there is no such attribute."""
    if not 0 < number <= LAST_ATTRIBUTE:
        return None
    return _own_attributes(gpu).get(number, _HOPPER.get(number, 0))


def _own_attributes(gpu: Gpu) -> dict[int, int]:
    """The attributes in which GPUs differ, of those that their data sheets have."""
    multiprocessor, capability = gpu.multiprocessor, compute_capability(gpu)
    is_hopper = int(capability >= (9, 0))
    return {
        16: gpu.multiprocessors,
        38: gpu.l2_bytes,
        39: multiprocessor.threads,
        75: capability[0],
        76: capability[1],
        81: multiprocessor.carve_outs_bytes[-1],
        82: multiprocessor.registers,
        97: multiprocessor.most_shared_bytes_per_block,
        106: multiprocessor.blocks,
        111: multiprocessor.reserved_shared_bytes,
        120: is_hopper,  # clusters
        127: is_hopper,  # tensor maps
    }


def compute_capability(gpu: Gpu) -> tuple[int, int]:
    """Major and minor version."""
    number = int(gpu.multiprocessor.arch.removeprefix("sm_"))
    return number // 10, number % 10


def device_name(gpu: Gpu) -> str:
    """The name as the driver reports it, marked as emulated."""
    return f"NVIDIA {gpu.name} (emulated)"
