"""Inputs of backward problems that are too large for the oracle's forward pass: O and lse from a kernel, on the GPU.

Gradients are defined by the O and lse that are stored, so those of any kernel pose a question with one right answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from harness import BackwardProblem, Buffer, Problem, Variant
from harness.gpu.context import GpuContext
from harness.gpu.stage import GpuStage, drawing
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.drawn_tensor import DrawnTensor
from harness.model.operation import draw_input_parts

COTANGENT = "dO"


def draw(
    problem: BackwardProblem, forward: Variant, seed: int, context: GpuContext
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the inputs twice: as arrays, and with tensors that a GPU can draw as `DrawnTensor`.

    Q, K, V and dO are from N(0, 1); `forward` computes O and lse.
    """
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(Problem)}
    attention = Problem(**fields)
    drawn: dict[str, Any] = dict(draw_input_parts(attention, "normal", seed))
    plan = forward.plan(attention)
    with context.memory():
        stage = GpuStage(context, attention, [drawn], [plan])
        arrays: dict[str, np.ndarray] = dict(stage.bind(plan).outputs(0))
        arrays |= {name: context.download(stage.inputs[0][name], problem.dtype) for name in "QKV"}
        dO = DrawnTensor(problem.q_shape, NUMPY_DTYPES[problem.dtype], seed, len(drawn))
        room = context.allocate(Buffer(COTANGENT, dO.shape, problem.dtype))
        context.bind(drawing(dO, COTANGENT), {COTANGENT: room})()
        arrays[COTANGENT] = context.download(room, problem.dtype)
        del stage, room
    kept: Mapping[str, Any] = {**drawn, COTANGENT: dO}
    return arrays, {**arrays, **kept}
