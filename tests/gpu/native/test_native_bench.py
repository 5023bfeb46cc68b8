"""`bench` on the GPU of this machine: times that mean something, and a table to look at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.execution.isolation.variants import discover_isolated
from harness.execution.run_settings import Effort, RunSettings
from harness.execution.timings import BenchRow
from harness.gpu.contenders import bench_on_gpu, torch_version
from harness.gpu.executor import GpuExecutor
from harness.model.problem import BaseProblem
from harness.operations.attention.libraries.scaled_dot_product import BACK_ENDS
from harness.operations.attention.problem import Problem
from harness.operations.attention_backward.problem import BackwardProblem
from harness.operations.paged_attention.problem import PagedProblem

pytestmark = pytest.mark.skipif(not GpuExecutor.available(), reason="CuPy finds no GPU on this machine")

QUICK = Effort(noise=0.05, most_seconds=0.2, sustained_seconds=0.1)


def run(problem: BaseProblem, names: str = "fa2*", libraries: bool = False) -> dict:
    variants = discover_isolated().registry.select(names, problem.operation)
    result = bench_on_gpu(variants, problem, RunSettings(effort=QUICK), libraries=libraries, step=lambda _: None)
    return {row.variant: row for row in result.rows}


def test_four_times_the_work_takes_about_four_times_as_long():
    """In one of a few tries: others may use the GPU meanwhile, such as tests that run beside this one."""
    ratios = []
    for _ in range(5):
        small = run(Problem(heads=32, q_len=2048, kv_len=2048), "fa2-cupy")["fa2-cupy"]
        large = run(Problem(heads=32, q_len=4096, kv_len=4096), "fa2-cupy")["fa2-cupy"]
        assert small.time_low_ms <= small.time_ms <= small.time_high_ms
        ratios.append((large.time_ms / small.time_ms, small.sustained_ms / small.time_ms))
        if 3.5 < ratios[-1][0] < 4.5 and 0.7 < ratios[-1][1] < 1.3:
            return
    pytest.fail(f"time of four times the work, and of a sustained run, by the time of one: {ratios}")


def test_a_cold_run_is_slower_than_a_warm_one_where_memory_decides():
    row = run(Problem(batch=8, heads=16, q_len=1, kv_len=256), "fa2-cupy")["fa2-cupy"]
    assert row.time_ms > 0 and row.samples >= 8


@pytest.mark.skipif(torch_version() is None, reason="PyTorch is not installed here, or sees no GPU")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_len", [256, 320])
def test_pytorch_answers_the_same_question(dtype: str, causal: bool, kv_len: int):
    rows = run(
        Problem(heads=4, kv_heads=2, q_len=256, kv_len=kv_len, dtype=dtype, mask="causal" if causal else "none"),
        libraries=True,
    )
    libraries = [rows[name] for name in BACK_ENDS]
    assert {row.verdict for row in libraries} <= {"pass", "unsupported"}, [row.reason for row in libraries]
    assert any(row.verdict == "pass" for row in libraries)
    assert all(row.reason for row in libraries if row.verdict == "unsupported")
    assert rows["torch-flex"].verdict == "unsupported"


NEEDS_TORCH = pytest.mark.skipif(torch_version() is None, reason="PyTorch is not installed here, or sees no GPU")
TENSOR_ROWS = ("torch-math", "torch-efficient", "torch-cudnn")


def refused(rows: dict, *names: str) -> dict:
    """Those of these rows that did not pass, and why."""
    return {name: rows[name].reason for name in names if rows[name].verdict != "pass"}


def require_front_end(row: BenchRow) -> None:
    """cuDNN's own frontend passes where it is installed."""
    assert row.verdict == "pass" or "nvidia-cudnn-frontend" in row.reason, row.reason


@NEEDS_TORCH
@pytest.mark.parametrize("mask", ["window:40,20", "causal+window:100"])
def test_others_answer_where_scaled_dot_product_attention_has_no_such_mask(mask: str):
    problem = Problem(heads=4, q_len=256, kv_len=320, head_dim=64, dtype="bfloat16", mask=mask)
    rows = run(problem, libraries=True)
    assert refused(rows, "torch-flex", *TENSOR_ROWS) == {}
    assert rows["torch-flash"].verdict == "unsupported"
    require_front_end(rows["cudnn"])


@NEEDS_TORCH
@pytest.mark.parametrize(
    "mask", ["causal+documents:100+60/200+30", "prefix:40", "blocks:16x24,3,heads", "causal+flashmask:2,2"]
)
def test_masks_that_are_no_band_are_handed_on(mask: str):
    problem = Problem(batch=2, heads=4, q_len=256, kv_len=320, head_dim=64, dtype="bfloat16", mask=mask)
    rows = run(problem, libraries=True)
    assert refused(rows, "torch-flex", *TENSOR_ROWS) == {}
    assert rows["cudnn"].verdict == rows["torch-flash"].verdict == "unsupported"


@NEEDS_TORCH
@pytest.mark.parametrize("fields", [{"softcap": 5.0}, {"alibi": True}, {"sinks": True, "mask": "causal"}], ids=str)
def test_flex_attention_has_what_scores_become(fields: dict):
    rows = run(Problem(heads=4, kv_heads=2, dtype="bfloat16", **fields), libraries=True)
    assert refused(rows, "torch-flex") == {}


@NEEDS_TORCH
@pytest.mark.parametrize(("q_len", "kv_len"), [(256, 256), (200, 333)])
def test_gradients_of_others(q_len: int, kv_len: int):
    problem = BackwardProblem(heads=4, q_len=q_len, kv_len=kv_len, dtype="bfloat16", mask="causal")
    rows = run(problem, "bwd-mma-cupy", libraries=True)
    assert refused(rows, "bwd-mma-cupy", "torch-efficient", "torch-flash", "torch-cudnn") == {}


@NEEDS_TORCH
def test_gradients_of_others_where_there_is_another_mask():
    problem = BackwardProblem(heads=4, dtype="bfloat16", mask="causal+window:20")
    rows = run(problem, "bwd-mma-cupy", libraries=True)
    assert refused(rows, "torch-efficient", "torch-flex") == {}


@NEEDS_TORCH
@pytest.mark.parametrize("q_len", [1, 4])
def test_pages_of_others(q_len: int):
    rows = run(PagedProblem(lengths=(17, 300, 4096), q_len=q_len), "paged-cupy", libraries=True)
    require_front_end(rows["cudnn"])


def test_the_command_prints_json(capsys: pytest.CaptureFixture):
    arguments = "bench --variants fa2-cupy --seq-len 128 --noise 10 --seconds 0.1 --sustained 0 --no-libraries"
    assert main([*arguments.split(), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"][0]["time_ms"] > 0 and told["rows"][0]["sustained_ms"] is None
    assert told["ceilings"]["copy_bytes_per_s"] > 0


def test_a_contender_that_writes_into_an_input_is_disqualified():
    plugin = Path(__file__).parents[2] / "plugins" / "spoilt_inputs.py"
    registry = discover_isolated([plugin]).registry
    variants = [registry.get("scales-q"), registry.get("fa2-cupy")]
    result = bench_on_gpu(variants, Problem(heads=2), RunSettings(effort=QUICK), libraries=False, step=lambda _: None)
    rows = {row.variant: row for row in result.rows}
    assert rows["scales-q"].verdict == "error" and "store into Q, which is an input" in rows["scales-q"].reason
    assert (rows["scales-q"].time_ms, rows["fa2-cupy"].verdict) == (None, "pass")
