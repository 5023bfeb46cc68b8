"""What a GPU's executor and `bench` look at besides the answer, on a stand-in for the GPU: arrays of NumPy's."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.execution.judging.question import Question
from harness.gpu.executor import GpuExecutor
from harness.gpu.stage import GpuStage
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.drawn_tensor import DrawnTensor
from harness.model.operation import draw_inputs
from harness.model.plan import Buffer, Launch, Plan
from harness.operations.attention.layout import Layout
from harness.operations.attention.problem import Problem
from harness.operations.kv_append.problem import AppendProblem
from harness.support.errors import KernelFault
from harness.support.intervals import Interval
from tests.gpu.host_context import HostContext

PROBLEM = Problem(heads=1, q_len=2, kv_len=3, head_dim=4)


def spoil(Q: np.ndarray, O: np.ndarray) -> None:
    O[...] = Q
    Q[0, 0, 1, 2] = np.nan


def write_some(scratch: np.ndarray, O: np.ndarray) -> None:
    O[0, 0, 0] = scratch[0, 0, 0]


def planned(kernel: Any, source: str = "Q") -> Plan:
    buffers = (Buffer("scratch", PROBLEM.q_shape, "float32"),)
    return Plan((Launch(kernel, (1,), (32,), (source, "O")),), buffers)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> GpuExecutor:
    monkeypatch.setattr("harness.gpu.executor.GpuContext", HostContext)
    monkeypatch.setattr("harness.gpu.executor._time", lambda devices, run: Interval(1.0, 1.0, 1.0))
    return GpuExecutor()


def test_the_executor_names_kernel_input_and_place(executor: GpuExecutor) -> None:
    with pytest.raises(KernelFault, match=r"^kernel spoil: store into Q, .*: 1 of its 8 elements .* row 1, column 2;"):
        executor.run(PROBLEM, planned(spoil), draw_inputs(PROBLEM))


def test_the_executor_distinguishes_unwritten_from_scratch(executor: GpuExecutor) -> None:
    execution = executor.run(PROBLEM, planned(write_some, "scratch"), draw_inputs(PROBLEM))
    assert np.isnan(execution.outputs["O"]).all() and execution.unwritten is not None
    assert execution.unwritten["O"].tolist() == [[[[False] * 4, [True] * 4]]]
    assert execution.time_ms is not None


PACKED = dataclasses.replace(PROBLEM, kv_len=PROBLEM.q_len, layout=Layout("qkv", 2))


def copy(Q: np.ndarray, O: np.ndarray) -> None:
    O[...] = Q


def copy_too_much(Q: np.ndarray, O: np.ndarray) -> None:
    O[...] = Q
    np.lib.stride_tricks.as_strided(O, (*O.shape[:3], O.shape[3] + 1), O.strides)[0, 0, 0, -1] = 0


def test_tensors_lie_where_the_layout_says(executor: GpuExecutor) -> None:
    inputs = draw_inputs(PACKED)
    execution = executor.run(PACKED, planned(copy), inputs)
    assert np.array_equal(execution.outputs["O"], inputs["Q"])
    with pytest.raises(KernelFault, match=r"^kernel copy_too_much: store between the rows of O"):
        executor.run(PACKED, planned(copy_too_much), inputs)
    with pytest.raises(KernelFault, match=r"^kernel spoil: store into Q"):
        executor.run(PACKED, planned(spoil), inputs)


def test_contenders_share_inputs_in_any_layout() -> None:
    inputs = draw_inputs(PACKED)
    context: Any = HostContext()
    context.cupy.empty = lambda size, dtype: SimpleNamespace(data=0)
    stage = GpuStage(context, PACKED, [inputs], [planned(copy)])
    assert np.array_equal(stage.bind(planned(copy)).outputs(0)["O"], inputs["Q"])
    assert np.isnan(stage.inputs[0]["QKV"]).any() and stage.inputs[0]["K"].base is not None


def test_a_contender_that_overwrites_an_input_is_named() -> None:
    inputs = draw_inputs(PROBLEM)
    plan = planned(spoil)
    context: Any = HostContext()
    context.cupy.empty = lambda size, dtype: SimpleNamespace(data=0)
    stage = GpuStage(context, PROBLEM, [inputs, draw_inputs(PROBLEM, seed=1)], [plan])
    contender = stage.bind(plan)
    with pytest.raises(KernelFault, match=r"^kernel spoil: store into Q, which is an input"):
        contender.outputs(0)
    assert np.array_equal(stage.inputs[0]["Q"], inputs["Q"])
    with pytest.raises(KernelFault):
        contender.outputs(1)


def test_inputs_drawn_on_the_gpu_are_fetched_only_if_they_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors = {t.name: DrawnTensor(t.shape, NUMPY_DTYPES[t.dtype], 5, n) for n, t in enumerate(PROBLEM.inputs)}

    def draw(tensor: DrawnTensor, buffer: str) -> Launch:
        return Launch(lambda array: np.copyto(array, np.asarray(tensor)), (1,), (32,), (buffer,))

    def count(tensor: DrawnTensor, buffer: str, count: str) -> Launch:
        def add(array: np.ndarray, changed: np.ndarray) -> None:
            changed += np.count_nonzero(array != np.asarray(tensor))

        return Launch(add, (1,), (32,), (buffer, count))

    monkeypatch.setattr("harness.gpu.stage.drawing", draw)
    monkeypatch.setattr("harness.gpu.stage.counting_changes", count)
    context: Any = HostContext()
    context.cupy.empty = lambda size, dtype: SimpleNamespace(data=0)
    fetched: list[int] = []
    download = context.download
    context.download = lambda array, dtype: fetched.append(array.size) or download(array, dtype)
    spoiling, reading = planned(spoil), planned(write_some, "scratch")
    stage = GpuStage(context, PROBLEM, [tensors], [spoiling])
    assert np.array_equal(stage.inputs[0]["K"], np.asarray(tensors["K"]))
    stage.bind(reading).outputs(0)
    assert fetched == [1, 1, 1, 8]  # a count for each input, and O
    with pytest.raises(KernelFault, match=r"^kernel spoil: store into Q, .*: 1 of its 8 elements .* row 1, column 2;"):
        stage.bind(spoiling).outputs(0)
    assert np.array_equal(stage.inputs[0]["Q"], np.asarray(tensors["Q"]))


APPEND = AppendProblem(lengths=(3,), new_lengths=(1,), kv_heads=1, head_dim=2, dtype="float32")


def append(K_new: np.ndarray, V_new: np.ndarray, table: np.ndarray, K: np.ndarray, V: np.ndarray) -> None:
    page = table[0, 0]
    K[page, 0, 2], V[page, 0, 2] = K_new[0, 0], V_new[0, 0]


def add_to_all(K_new: np.ndarray, V_new: np.ndarray, table: np.ndarray, K: np.ndarray, V: np.ndarray) -> None:
    K += 1


def appending(kernel: Any) -> Plan:
    return Plan((Launch(kernel, (1,), (32,), ("K_new", "V_new", "table", "K", "V")),))


def test_the_executor_gives_what_is_also_written_and_checks_all_of_it(executor: GpuExecutor) -> None:
    question = Question.draw(APPEND, "bits", 2)
    for number in range(2):  # a run does not find what another one has left
        assert question.check(executor.run(APPEND, appending(append), question.inputs).outputs).passed, number
    wrong = question.check(executor.run(APPEND, appending(add_to_all), question.inputs).outputs)
    assert "that have to stay as they are were overwritten" in (wrong.reason or "")
    assert "(new key 2 of sequence 0)" in (wrong.reason or "")


def test_a_contender_does_not_find_what_another_one_has_appended() -> None:
    context: Any = HostContext()
    question = Question.draw(APPEND, "normal", 2)
    plans = [appending(append), appending(lambda K_new, V_new, table, K, V: None)]
    stage = GpuStage(context, APPEND, [question.inputs], plans)
    right, idle = (stage.bind(plan) for plan in plans)
    right.enqueue(0)
    assert question.check(right.outputs(0)).passed
    assert "were not written" in (question.check(idle.outputs(0)).reason or "")
