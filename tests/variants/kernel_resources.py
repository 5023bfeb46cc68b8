"""What a kernel takes of a multiprocessor, as ptxas says."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from harness.compilers import DevicePointer, compile_kernel
from harness.compilers.ptxas import Resources, find_ptxas, resources
from harness.emulator.memory.residency import residency
from harness.model.plan import Launch
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.gpu_data_sheets import gpu

LARGEST_BLOCK_BYTES = 227 * 1024
"""Of shared memory, compute capability 9.0."""
H200 = gpu("h200")


def last_launch(variant: Variant, problem: BaseProblem) -> Launch:
    """Of its plan, with arguments such as a kernel of either language can be compiled for."""
    plan = variant.plan(problem)
    views = plan.views(problem)

    def pointer(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(map(pointer, arg))
        if not isinstance(arg, str):
            return arg
        view = views[arg]
        return DevicePointer(0, view.shape, view.dtype, view.strides)

    launch = plan.launches[-1]
    return dataclasses.replace(launch, args=pointer(tuple(launch.args)))


def used(launch: Launch) -> Resources:
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    kernel = compile_kernel(launch.kernel, launch.args, "sm_90")
    found = resources(kernel.ptx, kernel.arch, kernel.entry, kernel.max_registers)
    if found is None:
        pytest.skip("ptxas is older than the compiler")
    return found


def assert_in_registers(found: Resources) -> None:
    """Without spills, and without what ptxas reports as a loss: that it serializes `wgmma` or ignores `setmaxnreg`."""
    assert (found.spill_store_bytes, found.spill_load_bytes, found.stack_bytes) == (0, 0, 0)
    assert found.remarks == ()


def assert_fits(launch: Launch, blocks_per_sm: int) -> None:
    """Without spills, and with so many blocks on a multiprocessor."""
    found = used(launch)
    assert_in_registers(found)
    shared_bytes = found.shared_bytes + launch.shared_bytes
    assert residency(H200.multiprocessor, launch.block[0], found.registers, shared_bytes).blocks >= blocks_per_sm
