"""What one multiprocessor can start in a clock cycle, by kind of work, for each architecture of `harness.support.gpus`.

Results per cycle and multiprocessor are those of the table "Throughput of Native Arithmetic Instructions" of the CUDA
C++ Programming Guide; a warp instruction takes 32 of them. Latencies are of the order that microbenchmarks of these
architectures give (Luo et al. 2024, "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via
Microbenchmarking", arXiv 2402.13499), and are not told apart by architecture.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.support.gpus import Gpu

WARP_LANES = 32
SCHEDULERS = 4
"""Each starts one warp instruction a cycle."""
L1_LATENCY_CYCLES = 40
"""From a load to its value, where L1 has it."""
L2_LATENCY_CYCLES = 270
"""Where L2 has it."""
DRAM_LATENCY_CYCLES = 600
"""Where it has not."""
RESULT_CYCLES = {
    "fp32": 4, "fp16": 4, "integer": 4, "control": 4, "move": 0, "fp64": 8, "conversion": 8, "special": 18,
    "shuffle": 23, "shared": 29, "tensor": 33, "barrier": 0, "memory": 0,
}  # fmt: skip
"""Kind of instruction -> cycles until another one of the same warp can use what it makes. Loads of global memory and
barriers are waited for in other ways."""
LEAST_CYCLES_PER_INSTRUCTION = 2.0
"""Of one warp, in the mean: a result takes four, and registers do not suffice for more than some two instructions at a
time that do not wait for each other."""
LAUNCH_SECONDS = 2e-6
"""Of a launch behind another one in a stream: draining, and filling the GPU again."""


@dataclass(frozen=True)
class PipeRates:
    """Results per clock cycle of one multiprocessor, unless another unit is given."""

    fp32: int
    fp16: int
    """Elements; packed instructions make two."""
    fp64: int
    special: int
    integer: int
    """Comparisons and logic, too."""
    conversion: int
    wide_conversion: int
    """From and to types of 64 bits."""
    shared_bytes: int
    """Of shared memory and L1, which share a path: bytes per cycle."""
    l2_bytes: int
    """Of the whole L2, in all multiprocessors' cycles: bytes per cycle."""


# L2: "NVIDIA A100 Tensor Core GPU Architecture" gives 5,120 bytes per cycle for A100 and 2,048 for V100; the same as
# A100's is taken for Hopper and Ada, and V100's rate per multiprocessor for Turing.
RATES = {
    "sm_70": PipeRates(64, 128, 32, 16, 64, 16, 16, 128, 2048),
    "sm_75": PipeRates(64, 128, 2, 16, 64, 16, 2, 64, 1024),
    "sm_80": PipeRates(64, 256, 32, 16, 64, 16, 16, 128, 5120),
    "sm_89": PipeRates(128, 128, 2, 16, 64, 16, 2, 128, 5120),
    "sm_90": PipeRates(128, 256, 64, 16, 64, 64, 16, 128, 5120),
}
"""Architecture -> what it can start in a cycle."""


def rates_of(gpu: Gpu) -> PipeRates:
    """Those of the GPU's multiprocessors."""
    return RATES[gpu.multiprocessor.arch]


def clock_hz(gpu: Gpu) -> float:
    """The clock at which the data sheet's peak is reached."""
    return gpu.float32_flops / (2 * rates_of(gpu).fp32 * gpu.multiprocessors)
