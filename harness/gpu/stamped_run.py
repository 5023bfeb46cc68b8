"""Runs a variant's plan on the GPU with instrumented kernels that record timestamps per warp."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.execution.schedule.warp_timestamps import STAMP, StampedLaunch, StampedRun
from harness.gpu.context import POISON_BYTE, GpuContext, views_of
from harness.model.placed_tensors import placed_inputs
from harness.model.plan import Buffer, Launch, Plan, in_three_dimensions
from harness.model.problem import BaseProblem
from harness.ptx.timestamps import FEWEST_STAMPS, room_bytes
from harness.support.errors import UnsupportedProblem
from harness.support.gpu_data_sheets import WARP_LANES

MOST_STAMPS = 1024
"""Maximum number of timestamps per warp."""
MOST_ROOM_BYTES = 64 << 20
"""Memory limit for the timestamps of one launch, if that leaves each warp the minimum."""


def stamped_run(variant: str, problem: BaseProblem, plan: Plan, inputs: Mapping[str, np.ndarray]) -> StampedRun:
    """Run the plan twice, first as a warm-up, and return the second run's timestamps.

    Raises what `Executor.run` raises, and `SandboxError` if there is no usable GPU.
    """
    context = GpuContext()
    with context.memory():
        launches = _run(context, problem, plan, inputs)
    return StampedRun(variant, problem.headline, context.device.name, launches)


def stamps_per_warp(plan: Plan) -> int:
    """Number of timestamps that each warp of the plan has room for."""
    warps = max(_blocks(launch) * _warps(launch) for launch in plan.launches)
    return max(FEWEST_STAMPS, min(MOST_STAMPS, MOST_ROOM_BYTES // room_bytes(1, warps, 1)))


def _run(
    context: GpuContext, problem: BaseProblem, plan: Plan, inputs: Mapping[str, np.ndarray]
) -> tuple[StampedLaunch, ...]:
    if problem.sharing is not None:
        raise UnsupportedProblem("a GPU's timeline", "a plan of several devices has no timeline of one GPU")
    buffers, stamps = plan.all_buffers(problem), stamps_per_warp(plan)
    given = placed_inputs(problem, inputs)
    of_buffers: dict[str, Any] = {name: context.allocate(buffer) for name, buffer in buffers.items()}
    for name, values in given.items():
        context.upload(of_buffers[name], values)
    arrays = views_of(context, problem, of_buffers)
    sizes = [room_bytes(_blocks(launch), _warps(launch), stamps) for launch in plan.launches]
    rooms = [context.allocate(Buffer("stamps", (size,), "uint8")) for size in sizes]
    calls = context.bind_stamped(plan.launches, arrays, rooms, stamps)
    for _ in range(2):
        for name, array in of_buffers.items():
            if name not in given:
                context.fill(array, POISON_BYTE)
        for room in rooms:
            context.fill(room, 0)
        context.stream.synchronize()
        for launch, call in zip(plan.launches, calls, strict=True):
            with context.faults_named(launch.kernel_name):
                call()
        with context.faults_named(", ".join(launch.kernel_name for launch in plan.launches)):
            context.stream.synchronize()
    return tuple(
        StampedLaunch(
            launch.kernel_name,
            in_three_dimensions(launch.grid),
            in_three_dimensions(launch.block),
            context.download(room, "uint8").view(STAMP).reshape(_blocks(launch), _warps(launch), stamps),
        )
        for launch, room in zip(plan.launches, rooms)
    )


def _blocks(launch: Launch) -> int:
    return math.prod(launch.grid)


def _warps(launch: Launch) -> int:
    return -(-math.prod(launch.block) // WARP_LANES)
