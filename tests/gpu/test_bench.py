"""The rounds, the checks and the ranking of `bench`, with a stand-in for the GPU."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import harness
from harness.cli import main
from harness.execution.judging.spot_check import check_spots, choose_spots
from harness.execution.protocol import Device
from harness.execution.run_settings import Effort, RunSettings
from harness.execution.timings import BenchResult, BenchRow, Ceilings
from harness.gpu.bench import Entry, bench
from harness.gpu.contenders import least_ms
from harness.model.operation import WHOLE, draw_inputs, operation_named
from harness.operations.attention.problem import Problem
from harness.operations.ring_attention.problem import RingProblem
from harness.options.exit_status import INTERRUPTED
from harness.options.sweep import parse_sweep
from harness.studies.bench.sweep import BenchPoint, bench_sweep_report, draw_bench_sweep
from harness.support.errors import KernelFault
from harness.support.gpu_data_sheets import GPUS, gpu_like
from harness.text.bench_report import render_bench
from tests.attention_model import online_softmax

PROBLEM = Problem(heads=2, q_len=40, kv_len=48, head_dim=8)
INPUTS = [draw_inputs(PROBLEM, "normal", seed) for seed in (0, 1)]
SWEEP = parse_sweep("seq_len=64..256", operation_named("attention"))
SPOTS = [choose_spots(PROBLEM, inputs) for inputs in INPUTS]


class Model:
    """The NumPy model as a contender: a time, a noise, and what may go wrong."""

    def __init__(self, log: list, name: str, time_ms: float, noise: float = 0.001, breaks_after: int | None = None):
        self.log, self.name, self.time_ms, self.noise = log, name, time_ms, noise
        self.breaks_after, self.runs = breaks_after, 0
        self.random = np.random.default_rng(0)

    def enqueue(self, inputs: int) -> None:
        self.runs += 1
        self.log.append((self.name, inputs))
        if self.time_ms < 0:
            raise KernelFault("out of bounds", f"kernel {self.name} strays")

    def outputs(self, inputs: int) -> dict[str, np.ndarray]:
        out = dict(online_softmax(PROBLEM, INPUTS[inputs]))
        if self.breaks_after is not None and self.runs >= self.breaks_after:
            out["O"] = out["O"] * np.float32(1.5)
        return out


class Clock:
    """Knows how long each contender's run takes, because it can see which one was enqueued."""

    def __init__(self, log: list, models: dict[str, Model]):
        self.log, self.models = log, models

    def cold_ms(self, enqueue: Callable[[], None]) -> float:
        enqueue()
        model = self.models[self.log[-1][0]]
        return model.time_ms * (1 + model.noise * model.random.standard_normal())

    def sustained_ms(self, enqueue: Callable[[], None], seconds: float) -> float:
        return self.cold_ms(enqueue) * 1.1


DEFAULT = Effort()


def play(effort: Effort = DEFAULT, least: float = 0.0, **models: dict) -> tuple[dict, list]:
    log: list = []
    contenders = {name: Model(log, name, **options) for name, options in models.items()}
    entries = [Entry(name, "variant", model) for name, model in contenders.items()]

    def watch(measurement: Callable[[], float]) -> tuple[float, float | None, str | None]:
        return measurement(), 1500.0, None

    rows = bench(entries, SPOTS, Clock(log, contenders), effort, least, watch, lambda step: None)
    return {row.variant: row for row in rows}, log


def test_contenders_are_ranked_by_interval_and_ties_are_ties():
    rows, _ = play(fast={"time_ms": 1.0}, same={"time_ms": 1.0}, slow={"time_ms": 2.0})
    assert [row.rank for row in rows.values()] == [1, 1, 3]
    assert rows["slow"].time_ms == pytest.approx(2.0, rel=0.01)
    assert rows["slow"].time_low_ms <= rows["slow"].time_ms <= rows["slow"].time_high_ms
    assert rows["slow"].sustained_ms == pytest.approx(2.2, rel=0.02)
    assert rows["slow"].sustained_mhz == 1500.0


def test_runs_go_on_until_the_noise_is_reached():
    rows, _ = play(Effort(noise=0.005), quiet={"time_ms": 1.0}, noisy={"time_ms": 1.0, "noise": 0.02})
    assert rows["quiet"].samples < 20 < rows["noisy"].samples
    noisy = rows["noisy"]
    assert (noisy.time_high_ms - noisy.time_low_ms) / 2 / noisy.time_ms <= 0.005


def test_runs_end_where_the_time_is_up():
    rows, _ = play(Effort(noise=0.0, most_seconds=0.03), slow={"time_ms": 1.0})
    assert rows["slow"].samples == pytest.approx(30, abs=1)


def test_contenders_run_in_turns_on_inputs_that_rotate():
    _, log = play(Effort(sustained_seconds=0), a={"time_ms": 1.0}, b={"time_ms": 1.0})
    rounds = [log[i : i + 2] for i in range(0, 12, 2)]
    assert all({name for name, _ in pair} == {"a", "b"} for pair in rounds)
    assert [pair[0][1] for pair in rounds] == [0, 1, 0, 1, 0, 1]
    assert len({pair[0][0] for pair in rounds}) == 2, "the order within a round is drawn anew"


def test_what_breaks_while_it_is_timed_is_found_out_afterwards():
    rows, _ = play(right={"time_ms": 1.0}, rots={"time_ms": 0.5, "breaks_after": 5})
    assert rows["right"].verdict == "pass" and rows["right"].rank == 1
    assert rows["rots"].verdict == "fail" and rows["rots"].rank is None
    assert "off by more than their budget" in rows["rots"].reason


def test_a_wrong_contender_is_not_timed():
    rows, log = play(right={"time_ms": 1.0}, wrong={"time_ms": 0.1, "breaks_after": 0})
    assert rows["wrong"].verdict == "fail" and rows["wrong"].time_ms is None
    assert all(name == "right" for name, _ in log)


def test_a_contender_that_breaks_is_a_row_and_not_the_end():
    rows, _ = play(right={"time_ms": 1.0}, strays={"time_ms": -1.0})
    assert rows["right"].rank == 1
    assert rows["strays"].verdict == "error" and "strays" in rows["strays"].reason


def test_a_time_below_the_floor_is_no_time():
    rows, _ = play(least=0.9, possible={"time_ms": 1.0}, impossible={"time_ms": 0.5})
    assert rows["possible"].verdict == "pass"
    assert rows["impossible"].verdict == "error" and rows["impossible"].time_ms is None
    assert "less than the 0.9000 ms" in rows["impossible"].reason


def test_the_floor_is_the_longer_of_bytes_and_arithmetic():
    h200 = GPUS["h200"]
    decode = Problem(batch=64, heads=32, q_len=1, kv_len=8192, head_dim=128, dtype="float16")
    assert least_ms(decode, h200) == pytest.approx(1000 * decode.compulsory_read_bytes / 4.8e12)
    square = Problem(heads=16, q_len=8192, kv_len=8192, head_dim=128, dtype="float16")
    assert least_ms(square, h200) == pytest.approx(1000 * 4 * 16 * 8192 * 8192 * 128 / 989.5e12)
    assert least_ms(square, h200, "e4m3") == pytest.approx(least_ms(square, h200) / 2)
    assert least_ms(square, GPUS["a100"], "e4m3") == least_ms(square, GPUS["a100"])
    assert least_ms(square, None) == 0.0


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", None),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 3090", None),
    ],
)
def test_a_device_is_found_in_the_table(name: str, key: str | None):
    assert gpu_like(name) is (None if key is None else GPUS[key])


# --- spots -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"q_len": 700, "kv_len": 700, "mask": "causal"},
        {"q_len": 700, "kv_len": 500, "mask": "causal"},
        {"q_len": 300, "kv_len": 900, "mask": "causal"},
        {"q_len": 7, "kv_len": 900},
        {"q_len": 700, "kv_len": 700, "mask": "window:90,40"},
        {"q_len": 700, "kv_len": 500, "mask": "causal+window:64"},
        {"q_len": 700, "kv_len": 700, "scale": -0.3},
    ],
)
def test_spots_are_answered_as_the_whole_problem_is(monkeypatch: pytest.MonkeyPatch, fields: dict):
    problem = Problem(batch=2, heads=6, kv_heads=3, head_dim=16, **fields)
    inputs = draw_inputs(problem, "normal", 3)
    monkeypatch.setattr("harness.execution.judging.spot_check.WHOLE_FLOPS", 0.0)
    spots = choose_spots(problem, inputs)
    assert len(spots) == 3 and len({spot.part.where[0].start for spot in spots}) == 2
    right = online_softmax(problem, inputs)
    checked = check_spots(spots, right)
    assert checked.reason is None and 0 < checked.error_over_budget <= 1
    wrong = {name: array.copy() for name, array in right.items()}
    batch, head, rows = spots[-1].part.where
    wrong["O"][batch, head, rows][..., -1, 3] += 0.5
    assert check_spots(spots, wrong).reason.startswith(f"batch 1, head 5, rows {rows.start} to {rows.stop - 1}: 1 of")


def test_a_small_problem_is_checked_everywhere():
    (spot,) = SPOTS[0]
    assert spot.part is WHOLE
    wrong = dict(online_softmax(PROBLEM, INPUTS[0]))
    wrong["O"] = np.full_like(wrong["O"], np.nan)
    checked = check_spots([spot], wrong)
    assert "NaN" in checked.reason and math.isnan(checked.error_over_budget)


# --- the table -------------------------------------------------------------------------------------------------------


def result(**models: dict) -> BenchResult:
    rows, _ = play(**models)
    return BenchResult(
        problem=PROBLEM, regime="normal", seed=0, device=Device("gpu", "Some GPU", "sm_90"), driver="1.2", torch="2.0",
        ceilings=Ceilings(4e12, 50e12, "float32"), floor_ms=0.0, effort=Effort(), rows=tuple(rows.values()),
    )  # fmt: skip


def test_the_table_says_what_was_measured_and_marks_ties():
    text = render_bench(result(a={"time_ms": 1.0}, b={"time_ms": 1.0}, c={"time_ms": -1.0}), "table")
    assert max(map(len, text.splitlines())) <= 132
    assert text.count(" 1=  ") == 2
    assert "copy 4.00 TB/s, matrix product float32 50.0 TFLOP/s" in text
    assert "c: error: kernel c strays" in text
    assert "PyTorch 2.0" in text
    libraries = {"PyTorch": "2.0", "cuDNN": "9.19.0", "flash-attn-4": "4.0"}
    others = dataclasses.replace(result(a={"time_ms": 1.0}), libraries=libraries)
    assert "Installed with PyTorch: cuDNN 9.19.0, flash-attn-4 4.0." in render_bench(others, "table")


def test_percentages_of_several_devices_are_of_all_their_gpus():
    def shown(devices: int, gpus: int) -> tuple[str, float]:
        ring = RingProblem(devices=devices, heads=64, q_len=4096, kv_len=4096)
        device = Device("gpu", "Some GPU", "sm_90", count=gpus)
        text = render_bench(dataclasses.replace(result(a={"time_ms": 1.0}), problem=ring, device=device), "table")
        (line,) = (line.split() for line in text.splitlines() if line.split()[1:2] == ["a"])
        return " ".join(text.split()), float(line[9].replace(",", ""))

    (alone, of_one), (_, of_two), (shared, of_shared) = shown(1, 2), shown(2, 2), shown(2, 1)
    assert of_one == of_shared == pytest.approx(2 * of_two, rel=1e-3)
    assert "devices share" not in alone and "2 devices share one GPU: answers are checked" in shared
    assert "a time is from a common start to the end of the last one" in shown(2, 4)[0]


@pytest.mark.parametrize("format", ["markdown", "csv", "json"])
def test_every_format_has_every_row(format: str):
    text = render_bench(result(a={"time_ms": 1.0}, c={"time_ms": -1.0}), format)
    assert "tera_flops" in text or format == "markdown"
    assert "strays" in text


# --- sweeps ----------------------------------------------------------------------------------------------------------


def points() -> list[BenchPoint]:
    told = []
    for value in (64, 128, 256):
        rows = [
            BenchRow(variant=name, kind="variant", verdict="pass", time_ms=time_ms * value, sector_bytes=1000 * value)
            for name, time_ms in (("a-cupy", 0.1), ("a-numba", 0.2))
        ]
        rows.append(BenchRow(variant="torch-flash", kind="library", verdict="pass", time_ms=0.01 * value))
        rows.append(BenchRow(variant="b-cupy", kind="variant", verdict="error", reason="it strays"))
        told.append(BenchPoint(value, dataclasses.replace(result(a={"time_ms": 1.0}), rows=tuple(rows))))
    return told


def test_a_sweep_is_a_table_of_times():
    text = bench_sweep_report(SWEEP, points(), "heads 2").render("table")
    assert "Milliseconds, median of cold runs, against seq_len; heads 2" in text
    assert [line.split() for line in text.splitlines() if line.strip().startswith("128")] == [
        ["128", "12.800", "25.600", "error", "1.280"]
    ]
    assert "b-cupy at 64: error: it strays" in text
    rows = bench_sweep_report(SWEEP, points(), "heads 2").render("csv").splitlines()
    assert len(rows) == 1 + 3 * 4


def test_a_sweep_is_drawn_with_every_line_named_once():
    picture = draw_bench_sweep(SWEEP, points(), "heads 2", ".svg").decode()
    names = re.findall(r"<!-- (a-cupy|a-numba|a|b-cupy|torch-flash) -->", picture)
    assert sorted(names) == ["a", "a", "a-cupy", "a-numba", "torch-flash"], "bytes are the same for both backends"
    for title in ("milliseconds", "GiB at the sectors level", "FLOP per byte"):
        assert title in picture


# --- the command and the call ----------------------------------------------------------------------------------------


class SomeGpu:
    device = Device("gpu", "Some GPU", "sm_90")


def test_the_call_gives_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    told = result(a={"time_ms": 1.0}, b={"time_ms": 2.0})
    monkeypatch.setattr("harness.gpu.context.gpu_available", lambda: True)
    monkeypatch.setattr("harness.gpu.context.GpuContext", SomeGpu)
    monkeypatch.setattr("harness.gpu.contenders.bench_on_gpu", lambda variants, problem, settings, **how: told)
    found = harness.bench(variants="fa2-cupy", no_libraries=True)
    assert found.passed and found.result is told
    assert main(["bench", "--variants", "fa2-cupy"]) == 0
    assert capsys.readouterr().out == f"{found!r}\n" == render_bench(told, "table")
    picture = tmp_path / "times.svg"
    assert main(["bench", "--sweep", "seq_len=64..128", "--plot", str(picture)]) == 0
    swept = harness.bench(sweep="seq_len=64..128")
    assert [point.value for point in swept.result] == [64, 128]
    assert capsys.readouterr().out == f"{swept!r}\n"
    assert picture.read_text().startswith("<?xml") and swept.picture("times").suffix == ".svg"
    assert main(["bench", "--plot", str(picture)]) == 2
    assert "--plot goes with --sweep" in capsys.readouterr().err


def test_a_sweep_that_was_cut_off_goes_on_with_the_points_that_are_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    timed: list[int] = []

    def bench(variants: object, problem: Problem, settings: RunSettings, **how: object) -> BenchResult:
        if len(timed) == limit:
            raise KeyboardInterrupt
        timed.append(problem.q_len)
        return result(a={"time_ms": float(problem.q_len)})

    monkeypatch.setenv("ATTENTION_SANDBOX_RESULTS_DIR", str(tmp_path / "results"))
    monkeypatch.setattr("harness.gpu.context.gpu_available", lambda: True)
    monkeypatch.setattr("harness.gpu.context.GpuContext", SomeGpu)
    monkeypatch.setattr("harness.gpu.contenders.bench_on_gpu", bench)
    command = ["bench", "--variants", "fa2-cupy", "--sweep", "seq_len=64..256"]
    limit = 99
    assert main(command) == 0
    whole = capsys.readouterr().out
    timed.clear()
    limit = 2
    assert main(command) == INTERRUPTED
    capsys.readouterr()
    limit = 3
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "resuming an interrupted command: 2 of 3 points are done" in err
    assert out == whole and timed == [64, 128, 256]
