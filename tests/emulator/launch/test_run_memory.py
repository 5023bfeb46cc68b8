"""Which elements of an output were not written, wherever they lie."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator.launch.memory.run_memory import RunMemory
from harness.model.operation import draw_inputs
from harness.model.placed_tensors import placed_inputs, view
from harness.model.plan import Plan
from harness.operations.attention.layout import parse_layout
from harness.operations.attention.problem import Problem

pytestmark = pytest.mark.compiles(False)
SIZES = {"batch": 2, "heads": 2, "q_len": 3, "kv_len": 3, "head_dim": 4}


@pytest.mark.parametrize(
    ("problem", "offset"),
    [
        (Problem(**SIZES), (((1 * 2 + 1) * 3 + 2) * 4 + 1) * 4),
        (Problem(**SIZES, far=10_000), (((1 * 2 + 1) * 3 + 2) * 4 + 1) * 4),
        (Problem(**SIZES, far=10_000, layout=parse_layout("bshd+2")), (((1 * 3 + 2) * 2 + 1) * 6 + 1) * 4),
        (Problem(**SIZES, layout=parse_layout("bshd+2")), (((1 * 3 + 2) * 2 + 1) * 6 + 1) * 4),
        (Problem(**SIZES, layout=parse_layout("qkv")), (((1 * 3 + 2) * 2 + 1) * 4 + 1) * 4),
    ],
    ids=["dense", "far", "far, bshd+2", "bshd+2", "qkv"],
)
def test_a_hole_is_named_by_its_index_and_its_place_in_the_buffer(problem: Problem, offset: int):
    output = problem.tensor("O")
    hole = (1, 1, 2, 1)
    memory = RunMemory(problem, Plan(()).all_buffers(problem), placed_inputs(problem, draw_inputs(problem)), True)
    states = memory.buffers[-1].written
    assert memory.buffers[-1].name == "O" and states is not None
    (everything,) = memory.holes(output)
    assert everything.count == 2 * 2 * 3 * 4 and everything.offset == 0
    elements = states.view(np.uint32)
    if problem.spread is None:
        view(output, elements)[...] = 0
        view(output, elements)[hole] = 0xFFFF_FFFF
    else:
        placed = output.placement is not None
        written = np.zeros(output.placement.elements if placed else output.shape, np.uint32)
        view(output, written)[hole] = 0xFFFF_FFFF
        problem.spread.scatter(output, written, elements if placed else elements.reshape(-1, *output.shape[1:]))
    (found,) = memory.holes(output)
    assert (found.count, found.offset, found.target) == (1, offset, "buffer O")
    assert found.message.endswith("1 of the 48 elements of O, the first one at batch 1, head 1, row 2, column 1")


@pytest.mark.parametrize("far", [0, 10_000])
@pytest.mark.parametrize("layout", ["bhsd", "bshd+2", "qkv+1"])
def test_inputs_are_where_the_layout_says(layout: str, far: int):
    problem = Problem(**SIZES, layout=parse_layout(layout), far=far)
    inputs = draw_inputs(problem)
    memory = RunMemory(problem, Plan(()).all_buffers(problem), placed_inputs(problem, inputs), False)
    for tensor in problem.inputs:
        assert np.array_equal(view(tensor, memory.array(tensor.buffer)), inputs[tensor.name])
    memory.clear("O")
    assert not view(problem.tensor("O"), memory.array("O")).any()
