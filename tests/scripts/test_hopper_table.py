"""The table of Hopper: its measurement on a stand-in for the GPU, its record, and its page."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness import BackwardProblem, Buffer, Launch, Plan, Problem, Registry, Variant
from harness.execution.timings import Ceilings
from harness.gpu import contenders
from harness.model.operation import draw_inputs
from scripts.hopper import backward_inputs, measurement, page
from scripts.hopper.measurement import Item, measure, prepare
from scripts.hopper.problems import GROUPS, Group
from tests.attention_model import NUMERICS, online_softmax
from tests.gpu.host_context import HostContext

SIZES = {"heads": 2, "q_len": 24, "kv_len": 24, "head_dim": 8}
ABOUT = {
    "gpu": "NVIDIA H200", "driver": "580.1", "date": "2026-11-30", "cupy": "14.2.0", "nvrtc": "13.0",
    "copy_bytes_per_s": 4.2e12, "matrix_flops": 7e14, "libraries": {"PyTorch": "2.11", "flash-attn-4": "4.0"},
}  # fmt: skip


def plan(problem: Problem) -> Plan:
    def kernel(Q: np.ndarray, K: np.ndarray, V: np.ndarray, O: np.ndarray, lse: np.ndarray) -> None:
        found = online_softmax(problem, {"Q": Q, "K": K, "V": V})
        O[...], lse[...] = found["O"], found["lse"]

    launch = Launch(kernel, (1,), (32,), ("Q", "K", "V", "O", "lse"))
    return Plan((launch,), (Buffer("lse", problem.lse_shape, "float32"),))


class Context(HostContext):
    """A stand-in that `bench` can run on."""

    def __init__(self) -> None:
        super().__init__()
        self.l2_bytes = 0
        self.cupy.empty = lambda size, dtype: SimpleNamespace(data=0)
        self.cupy.cuda = SimpleNamespace(Device=lambda: SimpleNamespace(pci_bus_id="none"))


class Stopwatch:
    """Each run takes a millisecond."""

    def __init__(self, context: Any, others: Sequence[Any] = ()) -> None:
        pass

    def cold_ms(self, enqueue: Any) -> float:
        enqueue()
        return 1.0


class Planned(SimpleNamespace):
    """An attempt that has a plan."""

    refusal = error = claim_failure = claim = None


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    registry = Registry()
    registry.add(Variant(name="host", plan=plan, algorithm="a", backend="cupy", idea="b", numerics=NUMERICS[False]))
    monkeypatch.setattr(measurement, "_registry", lambda: registry)
    monkeypatch.setattr(measurement, "_ceilings", lambda: Ceilings(4.2e12, 7e14, "bfloat16"))
    for module in (contenders, measurement):
        monkeypatch.setattr(module, "GpuContext", Context)
        monkeypatch.setattr(module, "Stopwatch", Stopwatch)
    monkeypatch.setattr(contenders, "torch_version", lambda: None)
    # A function is no kernel of any language.
    monkeypatch.setattr(contenders, "attempt", lambda variant, problem: Planned(plan=variant.plan(problem)))
    return Group("forward", "Forward", (), ("host",), ())


def test_a_problem_is_prepared_in_one_process_and_timed_in_another(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, file = Item(group, Problem(**SIZES)), tmp_path / "prepared"
    prepare(item, file)

    def asked(*arguments: Any) -> None:
        raise AssertionError("the process that times asks the oracle")

    monkeypatch.setattr(contenders, "choose_spots", asked)
    monkeypatch.setattr("harness.execution.judging.question.Question._derived_tolerance", asked)
    entry = measure(item, file)
    row = entry["rows"]["host"]
    assert (row["kind"], row["ms"], row["runs"]) == ("variant", [1.0, 1.0, 1.0], 8) and 0 < row["error"] < 1
    assert json.loads(json.dumps(entry)) == entry and page.problem_of(entry) == item.problem
    assert not file.exists()


def test_a_wrong_answer_has_no_time(group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item, file = Item(group, Problem(**SIZES)), tmp_path / "prepared"
    prepare(item, file)
    wrong = Variant(
        name="host", algorithm="a", backend="cupy", idea="b", numerics=NUMERICS[False],
        plan=lambda problem: plan(Problem(**SIZES, scale=0.5)),
    )  # fmt: skip
    monkeypatch.setattr(measurement, "_registry", lambda: SimpleNamespace(get=lambda name: wrong))
    row = measure(item, file)["rows"]["host"]
    assert row["verdict"] == "fail" and "ms" not in row


def test_o_and_lse_of_a_backward_problem_come_from_a_forward_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = lambda tensor, buffer: Launch(lambda x: np.copyto(x, np.asarray(tensor)), (1,), (32,), (buffer,))  # noqa: E731
    monkeypatch.setattr(backward_inputs, "drawing", drawn)
    problem = BackwardProblem(mask="causal", **SIZES)
    forward: Any = SimpleNamespace(plan=plan)
    arrays, kept = backward_inputs.draw(problem, forward, 3, Context())  # type: ignore[arg-type]
    assert set(arrays) == {tensor.name for tensor in problem.inputs}
    qkv = {name: arrays[name] for name in "QKV"}
    expected = online_softmax(Problem(mask="causal", **SIZES), qkv)
    assert np.array_equal(arrays["O"], expected["O"]) and np.array_equal(arrays["lse"], expected["lse"])
    assert all(np.array_equal(arrays[name], np.asarray(kept[name])) for name in arrays)
    assert np.array_equal(arrays["Q"], draw_inputs(Problem(mask="causal", **SIZES), seed=3)["Q"])
    assert abs(arrays["dO"].std() - 1) < 0.2


def entry(group: str, problem: Any, **ms: float) -> dict[str, Any]:
    rows = {
        name.replace("_", "-"): {"kind": "library" if "attn" in name else "variant", "ms": [time, time, time]}
        for name, time in ms.items()
    }
    return {"group": group, "problem": problem.to_short_fields(), "rows": rows}


def test_the_page_has_rates_and_ratios() -> None:
    by_name = {group.name: group for group in GROUPS}
    forward, decode = by_name["forward"].problems[0], by_name["decode"].problems[0]
    entries = [
        entry("forward", forward, fa3_cupy=2.0, fa2_mma_cupy=4.0, flash_attn_4=1.0),
        entry("decode", decode, split_kv_cupy=1.0, flash_attn_4=2.0),
    ]
    written = page.page_of({"about": ABOUT, "entries": entries})
    figures = [forward.flops / ms / 1e9 for ms in (2.0, 4.0, 1.0)]
    assert f"| {' | '.join(f'{each:.0f}' for each in figures)} | 0.50 |" in written
    share = 100 * decode.compulsory_read_bytes / 1e-3 / 4.8e12
    assert f"| {share:.0f} % | {share / 2:.0f} % | 2.00 |" in written
    assert page.ABSENT not in written and "{" not in written.replace("```{", "")
    about = ABOUT | {"libraries": {"PyTorch": "2.11"}}
    assert page.ABSENT in page.page_of({"about": about, "entries": entries[:1]})


def test_a_group_has_a_section_once_it_is_measured() -> None:
    sequences = {group.name: group for group in GROUPS}["varlen"].problems
    equal = [each for each in sequences if each.head_dim == 64 and each.mask_within.text == "causal"][:3]  # type: ignore[attr-defined]
    entries = [entry("varlen", each, fa3_cupy=2.0, flash_attn_4=1.0) for each in equal]
    assert "## Unpadded" not in page.page_of({"about": ABOUT, "entries": []})
    written = page.page_of({"about": ABOUT, "entries": entries})
    assert "## Unpadded sequences\n" in written and "## Forward" not in written
    # The same pairs of row and key, so the same rate.
    lines = [line for line in written.splitlines() if line.endswith("| 0.50 |")]
    assert [line.split(" | ")[5] for line in lines] == ["bhsd", "bshd", "unpadded"]
    assert len({line.split(" | ")[6] for line in lines}) == 1


def test_every_problem_is_found_again_in_a_record() -> None:
    items = [Item(group, problem) for group in GROUPS for problem in group.problems]
    keys = [json.dumps(item.key) for item in items]
    assert len(set(keys)) == len(keys)
    assert [page.problem_of(json.loads(key)) for key in keys] == [item.problem for item in items]


def test_groups_go_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(GROUPS)) == GROUPS


def test_the_page_is_that_of_the_record() -> None:
    assert page.PAGE.exists() == page.RECORD.exists()
    if page.RECORD.exists():
        assert page.PAGE.read_text() == page.page_of(json.loads(page.RECORD.read_text()))
