"""A plan in which blocks go round the devices, as in ring attention, and every wait of every copy matters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from harness.model.peer_copy import PeerCopy
from harness.model.plan import Buffer, Launch, Plan
from harness.operations.ring_attention.problem import RingProblem

LaunchOf = Callable[[str, tuple[str, ...], int], Launch]
"""A launch of the kernel of this name with these buffers, on this device."""
ROWS, HEAD_DIM = 2, 2


def summing_problem(devices: int) -> RingProblem:
    """A problem with a block of K and of O for each device. `summing_plan` answers another question about it."""
    rows = devices * ROWS
    return RingProblem(devices=devices, heads=1, kv_heads=1, q_len=rows, kv_len=rows, head_dim=HEAD_DIM)


def summing_plan(devices: int, launch: LaunchOf) -> Plan:
    """O of every device is the sum of all devices' K, which go round.

    A device overwrites a block as soon as it may. Kernels and their buffers: begin (K, block, other, total) sets block
    to K, other to NaN and total to 0; add (block, total); spoil (block) sets it to NaN; end (total, O).
    """
    every = range(devices)
    slots = [[f"slot_{slot}@{device}" for slot in range(2)] for device in every]
    launches = [launch("begin", (f"K@{d}", *slots[d], f"total@{d}"), d) for d in every]
    copies: list[PeerCopy] = []
    for step in every:
        here, there = step % 2, (step + 1) % 2
        if step:
            launches += [launch("spoil", (slots[d][there],), d) for d in every]
        start = len(launches)
        launches += [launch("add", (slots[d][here], f"total@{d}"), d) for d in every]
        if step + 1 < devices:
            ends = [(slots[d][here], slots[(d + 1) % devices][there]) for d in every]
            size_bytes = 4 * ROWS * HEAD_DIM
            copies += [PeerCopy(source, target, size_bytes, start, len(launches)) for source, target in ends]
    launches += [launch("end", (f"total@{d}", f"O@{d}"), d) for d in every]
    names = [(name, d) for d in every for name in (f"total@{d}", *slots[d])]
    buffers = tuple(Buffer(name, (1, 1, ROWS, HEAD_DIM), "float32", device) for name, device in names)
    return Plan(tuple(launches), buffers, copies=tuple(copies))


def sums(problem: RingProblem, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """What the plan stores in O."""
    total = inputs["K"].reshape(problem.devices, ROWS, HEAD_DIM).sum(axis=0)
    return np.tile(total, (problem.devices, 1)).reshape(problem.tensor("O").shape)
