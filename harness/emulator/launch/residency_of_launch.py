"""Number of blocks of a launch that a GPU holds at a time."""

from __future__ import annotations

from harness.compilers import CompiledKernel
from harness.compilers.ptxas import Resources, resources
from harness.emulator.launch.configuration import Geometry
from harness.emulator.memory.residency import Residency, residency
from harness.model.plan import Launch
from harness.support.errors import PlanError
from harness.support.gpu_data_sheets import GPUS, Gpu


def residency_of(gpu: Gpu, step: Launch, geometry: Geometry, used: Resources) -> Residency:
    """Residency of the blocks of a launch on one multiprocessor. Raises `PlanError` if not even one fits."""
    shared = used.shared_bytes + geometry.dynamic_shared_bytes
    found = residency(gpu.multiprocessor, geometry.threads, used.registers, shared)
    if not found.blocks:
        raise PlanError(
            f"kernel {step.kernel_name} does not fit the {gpu.name}: a block has {geometry.threads} threads of "
            f"{used.registers} registers and {shared} bytes of shared memory; choose another --gpu"
        )
    return found


def resident_clusters(compiled: CompiledKernel, geometry: Geometry) -> int:
    """Number of a launch's clusters that an H200 holds at a time.

    An unknown number of registers is assumed to be small.
    """
    used = resources(compiled.ptx, compiled.arch, compiled.entry, compiled.max_registers)
    registers = 1 if used is None else used.registers
    shared = geometry.dynamic_shared_bytes + (0 if used is None else used.shared_bytes)
    gpu = GPUS["h200"]
    blocks = gpu.multiprocessors * residency(gpu.multiprocessor, geometry.threads, registers, shared).blocks
    return max(1, blocks // geometry.blocks_per_cluster)
