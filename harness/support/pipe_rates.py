"""Throughput per clock cycle of one multiprocessor by kind of work, for architectures of `support.gpu_data_sheets`.

Results per cycle and multiprocessor are those of the table "Throughput of Native Arithmetic Instructions" of the CUDA
C++ Programming Guide; a warp instruction takes 32 of them. Latencies are approximations from microbenchmarks of these
architectures (Luo et al. 2024, "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking",
arXiv 2402.13499), with the same value for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.support.gpu_data_sheets import Gpu

L1_LATENCY_CYCLES = 40
"""Latency of a load that hits L1."""
L2_LATENCY_CYCLES = 270
"""Latency of a load that hits L2."""
DRAM_LATENCY_CYCLES = 600
"""Latency of a load from DRAM."""
RESULT_CYCLES = {
    "fp32": 4, "fp16": 4, "integer": 4, "control": 4, "move": 0, "fp64": 8, "conversion": 8, "special": 18,
    "shuffle": 23, "shared": 29, "tensor": 33, "barrier": 0, "memory": 0,
}  # fmt: skip
"""Cycles until a dependent instruction of the same warp can issue, by kind of instruction. Loads of global memory and
barriers are modelled separately."""
LEAST_CYCLES_PER_INSTRUCTION = 2.0
"""Average minimum cycles per instruction of one warp: a result takes four, and registers limit a warp to about two
independent instructions at a time."""
LAUNCH_SECONDS = 2e-6
"""Time per launch that follows another one in a stream: draining, and filling the GPU again."""


@dataclass(frozen=True)
class PipeRates:
    """Results per clock cycle of one multiprocessor, unless another unit is given."""

    fp32: int
    fp16: int
    """float16 elements; a packed instruction produces two."""
    fp64: int
    special: int
    integer: int
    """Integer arithmetic, comparisons and logic."""
    conversion: int
    wide_conversion: int
    """Conversions from and to 64-bit types."""
    shared_bytes: int
    """Bytes per cycle of shared memory and L1, which share a path."""
    l2_bytes: int
    """Bytes per cycle of the whole L2, for all multiprocessors together."""


# L2: "NVIDIA A100 Tensor Core GPU Architecture" gives 5,120 bytes per cycle for A100 and 2,048 for V100. Hopper and Ada
# are assumed to match A100, Blackwell to match Hopper, and Turing to match V100 per multiprocessor.
RATES = {
    "sm_70": PipeRates(64, 128, 32, 16, 64, 16, 16, 128, 2048),
    "sm_75": PipeRates(64, 128, 2, 16, 64, 16, 2, 64, 1024),
    "sm_80": PipeRates(64, 256, 32, 16, 64, 16, 16, 128, 5120),
    "sm_89": PipeRates(128, 128, 2, 16, 64, 16, 2, 128, 5120),
    "sm_90": PipeRates(128, 256, 64, 16, 64, 64, 16, 128, 5120),
    "sm_100": PipeRates(128, 256, 64, 16, 64, 64, 16, 128, 5120),
}
"""Throughput by architecture."""


def rates_of(gpu: Gpu) -> PipeRates:
    """The throughput of the GPU's multiprocessors."""
    return RATES[gpu.multiprocessor.arch]


def clock_hz(gpu: Gpu) -> float:
    """The clock at which the data sheet's peak is reached."""
    return gpu.float32_flops / (2 * rates_of(gpu).fp32 * gpu.multiprocessors)
