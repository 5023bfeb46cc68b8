"""The command `why`: what it says in each format, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.execution.protocol import Device
from harness.execution.run_settings import Effort
from harness.execution.timings import BenchResult, BenchRow, Ceilings
from harness.studies.why.causes import Cause
from harness.studies.why.report import CSV_KEYS
from harness.studies.why.result import WhyResult

PLUGIN = Path(__file__).parent / "planted" / "tiled_cupy.py"
PAIR = ("bank-conflicts-cupy", "good-cupy", "--plugin", PLUGIN, "--heads", 2, "--seq-len", 64, "--device", "emulator")


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["why", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_it_says_first_what_costs_most(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, *PAIR)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 120
    assert lines[2].startswith("bank-conflicts-cupy is predicted to take ")
    assert lines[3].startswith("Largest cause: bank conflicts, ")
    rows = [line for line in lines if line.startswith(("bank conflicts ", "all "))]
    assert [row.split()[0] for row in rows] == ["bank", "all"]
    assert "Cause most worth removing: bank conflicts. Its cost exceeds the whole difference" in out
    assert "pad the rows of the tile" in out
    assert " ".join(lines[5:7]) == (
        "The problem is small for this GPU: bank-conflicts-cupy has 2 blocks and good-cupy has 2 for 132 "
        "multiprocessors, so this comparison says little about their speed on a full GPU. Add --heads 264."
    )
    assert "without tiles" not in out


def test_the_slower_one_is_explained_in_either_order(capsys: pytest.CaptureFixture[str]) -> None:
    _, in_order, _ = call(capsys, *PAIR, "--slower-first")
    _, swapped, _ = call(capsys, PAIR[1], PAIR[0], *PAIR[2:], "--slower-first")
    assert swapped == in_order and "bank-conflicts-cupy is predicted to take " in swapped


@pytest.mark.compiles(False)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((PAIR[0], *PAIR[2:]), "--other-dtype is the dtype of a second variant's problem; name the variant"),
        ((*PAIR[:-1], "gpu"), "GPU"),
    ],
)
def test_another_dtype_needs_another_variant_and_is_only_predicted(
    arguments: tuple[object, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = call(capsys, *arguments, "--other-dtype", "float16")
    assert status == 2 and message in err and err.count("\n") == 1


def test_json_has_all_parts(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, *PAIR, "--format", "json")
    found = json.loads(out)
    assert status == 0
    assert found["gpu"] == "H200 SXM"
    slow, fast = found["variants"]
    assert (slow["variant"], fast["variant"]) == PAIR[:2]
    assert slow["measured_us"] is None
    assert slow["predicted_us"] - fast["predicted_us"] == pytest.approx(found["distance_us"])
    assert sum(cause["cost_us"] for cause in found["causes"]) == pytest.approx(found["distance_us"], rel=1e-4)
    first = found["causes"][0]
    assert (first["cause"], first["unit"]) == ("bank conflicts", "M extra wavefronts")
    assert first["figure"] > first["other_figure"]
    assert first["file"].endswith("tiled_cupy.py") and first["line"] > 0
    # 2 blocks of 64 x 64 over 64 keys: 2 x 2 products of 64 x 64 x 64, a warp to 32 lanes.
    assert slow["instructions"]["fp32"]["warp_instructions"] >= 2 * 2 * 64**3 / 32
    assert slow["instructions"]["fp32"] == fast["instructions"]["fp32"]


def test_local_memory_is_the_cause_where_arrays_are_indexed_by_a_variable(capsys: pytest.CaptureFixture[str]) -> None:
    plugin = Path(__file__).parents[2] / "plugins" / "local_arrays.py"
    arguments = ("--plugin", plugin, "--heads", 1, "--seq-len", 64, "--head-dim", 32, "--device", "emulator")
    status, out, _ = call(capsys, "tiled", "fa2-cupy", *arguments)
    lines = out.splitlines()
    assert status == 0
    assert lines[3].startswith("Largest cause: local memory, ") and "(local " in lines[3]
    assert "  // values" in out or "  // scores" in out
    rows = [line for line in lines if line.startswith("local memory ")]
    # The arrays have 32 of 128 floats in use: zeroed or loaded once, then 64 keys read q, and read and write acc.
    moved = 64 * 32 * 4 * (1 + 1 + 64 * (1 + 2) + 1) / 2**20
    assert rows[0].split()[2:5] == [f"{moved:.2f}", "0", "MiB"]
    assert "local memory: make indices into arrays compile-time constants (unroll)" in out
    assert "\nspills" not in out


def test_a_cause_whose_figures_are_equal_is_not_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = WhyResult.figures

    def figures(result: WhyResult, cause: Cause) -> tuple[float | None, float | None]:
        return (512.0, 512.0) if cause.name == "bank conflicts" else counted(result, cause)

    assert "bank conflicts" in call(capsys, *PAIR)[1]
    monkeypatch.setattr(WhyResult, "figures", figures)
    status, out, _ = call(capsys, *PAIR)
    assert status == 0
    assert "bank conflicts " not in out.replace("bank-conflicts-cupy", "")


def test_a_wrong_kernel_is_said_to_be_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    plugin = Path(__file__).parents[2] / "plugins" / "unpadded_column.py"
    wrong = ("column-cupy", "row-wise-cupy", "--plugin", plugin, "--heads", 1, "--seq-len", 16, "--device", "emulator")
    status, out, _ = call(capsys, *wrong)
    assert status == 1
    assert out.split("\n\n")[1].startswith("WRONG: column-cupy: fail: 992 of 1,024 elements of O")
    assert "Verdicts: column-cupy fail, row-wise-cupy pass." in out
    status, out, _ = call(capsys, *wrong, "--format", "json")
    assert status == 1
    found = {each["variant"]: (each["verdict"], each["reason"]) for each in json.loads(out)["variants"]}
    assert found["column-cupy"][0] == "fail"
    assert found["row-wise-cupy"] == ("pass", None)


def test_csv_and_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(call(capsys, *PAIR, "--format", "csv")[1])))
    assert tuple(rows[0]) == CSV_KEYS
    assert rows[0]["cause"] == "bank conflicts"
    markdown = call(capsys, *PAIR, "--format", "markdown")[1]
    assert any(line.startswith("| bank conflicts") for line in markdown.splitlines())


def test_alone_it_is_held_against_the_roofline(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "good-cupy", *PAIR[2:], "--format", "json", "--gpu", "a100")
    found = json.loads(out)
    assert (status, found["gpu"]) == (0, "A100 SXM 80 GB")
    alone, roofline = found["variants"]
    assert roofline["variant"] == "roofline" and roofline["instructions"] is None
    assert 0 < roofline["predicted_us"] < alone["predicted_us"]
    other = {cause["cause"]: cause["other_figure"] for cause in found["causes"]}
    assert other["bytes moved"] == pytest.approx(4 * 2 * 64 * 64 * 4 / 2**20, rel=0.02)
    assert other["shared memory"] is None
    out = call(capsys, "good-cupy", *PAIR[2:])[1]
    were = r"[^.]+\. Reducing its cost to the level of the roofline"
    words = " ".join(out.split())
    assert re.search(rf"Cause most worth removing: {were} would lower the predicted time of good-cupy to ", words)


def test_a_kernel_without_tiles_is_not_advised_to_add_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--heads", 1, "--seq-len", 16, "--device", "emulator")
    advice = {}
    for variant, plugin in (("row-wise-cupy", ()), ("good-cupy", ("--plugin", PLUGIN))):
        problem = arguments if not plugin else (*plugin, *PAIR[4:])
        found = json.loads(call(capsys, variant, *problem, "--format", "json")[1])
        advice[variant] = {each["cause"]: each["advice"] for each in found["causes"]}["latency of loads"]
    assert "stage" in advice["good-cupy"]
    assert "stage" not in advice["row-wise-cupy"] and "several loads" in advice["row-wise-cupy"]


def test_a_note_names_kernels_whose_time_is_underestimated_and_grids_that_are_small(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pair = ("row-wise-cupy", "good-cupy", *PAIR[2:4], "--heads", 10, "--seq-len", 64, "--device", "emulator")
    status, out, _ = call(capsys, *pair)
    words = " ".join(out.split())
    assert status == 0
    assert (
        "Kernels that load their inputs at least 4 times and use each loaded element in fewer than 4 multiplications, "
        "such as row-wise-cupy, typically take about four times as long as predicted."
    ) in words
    assert "good-cupy has 10 blocks for 132 multiprocessors, so this comparison says little about its speed" in words
    alone = " ".join(call(capsys, "good-cupy", *PAIR[2:])[1].split())
    assert "good-cupy has 2 blocks for 132 multiprocessors, so this prediction says little" in alone


def test_backwards_it_is_no_slower(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, PAIR[1], PAIR[0], *PAIR[2:])
    assert status == 0
    assert "good-cupy is predicted to be no slower than bank-conflicts-cupy: " in out
    assert "Cause most worth removing" not in out


def test_without_ptxas_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.emulator.emulated_gpu.resources", lambda *arguments: None)
    status, out, _ = call(capsys, *PAIR)
    assert status == 0
    assert (
        "ptxas is missing, so registers, spills, caches and the number of blocks that fit are not known."
        in " ".join(out.split())
    )


def test_measured_times_stand_beside_predicted_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def bench(variants: Any, problem: Any, settings: Any, **options: Any) -> BenchResult:
        asked.update(options, names=[variant.name for variant in variants])
        rows = (
            BenchRow(variant="good-cupy", kind="variant", verdict="pass", time_ms=0.02),
            BenchRow(variant="bank-conflicts-cupy", kind="variant", verdict="fail", reason="O is wrong"),
        )
        device = Device("gpu", "NVIDIA H200", "sm_90")
        return BenchResult(
            problem=problem, regime="normal", seed=0, device=device, driver=None, torch=None,
            ceilings=Ceilings(1, 1, "float32"), floor_ms=0.0, effort=Effort(), rows=rows,
        )  # fmt: skip

    monkeypatch.setattr("harness.gpu.executor.GpuExecutor.available", classmethod(lambda cls: True))
    monkeypatch.setattr("harness.gpu.executor.GpuExecutor.__init__", lambda self: None)
    monkeypatch.setattr("harness.gpu.executor.GpuExecutor.device", Device("gpu", "NVIDIA H200", "sm_90"), raising=False)
    monkeypatch.setattr("harness.gpu.contenders.bench_on_gpu", bench)
    arguments = [*PAIR[:-1], "gpu"]
    status, out, _ = call(capsys, *arguments)
    assert (asked["names"], asked["libraries"]) == ([*PAIR[:2]], False)
    good = next(line.split() for line in out.splitlines() if line.startswith("good-cupy "))
    assert good[2] == "0.0200" and float(good[3]) == pytest.approx(float(good[1]) / 0.02, abs=0.01)
    assert next(line.split()[2] for line in out.splitlines() if line.startswith("bank-conflicts-cupy  ")) == "-"
    assert "bank-conflicts-cupy: O is wrong" in out
    assert status == 1
    found = json.loads(call(capsys, *arguments, "--format", "json")[1])
    assert [each["measured_us"] for each in found["variants"]] == [None, 20]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("good-cupi",), "no variant 'good-cupi'; did you mean 'good-cupy'?"),
        (("good-cupy", "good-cupy"), "both are the same; leave out one to compare with the roofline"),
        (("good-cupy", "softmax-online-cupy"), "softmax-online-cupy computes softmax, but the problem is one of att"),
        (
            ("good-cupy", "re-read-cupy", "--seq-len", "65"),
            "good-cupy does not support this problem: float32, head",
        ),
        (("good-cupy", "--gpu", "h300"), "no GPU 'h300' in the table; choose one of h200"),
        (("good-cupy", "--output", "/nowhere/at/all.txt"), "/nowhere/at"),
        (("good-cupy", "--regime", "norma"), "norma"),
        ((), "the following arguments are required: A"),
    ],
)
def test_what_is_wrong_is_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    status, out, err = call(capsys, *arguments, *(("--plugin", PLUGIN) if arguments else ()))
    assert (status, out) == (2, "")
    assert err.count("\n") == 1 and words in err


def test_a_variant_that_breaks_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    text = PLUGIN.read_text().replace("float o[TM][8]", "Q[1 << 28] == 0 ? 1 : 0; float o[TM][8]")
    broken.write_text(text.replace("    Q[1 << 28] == 0 ? 1 : 0;", "    if (Q[1 << 28] == 0) return;"))
    status, out, err = call(capsys, "good-cupy", "--plugin", broken, *PAIR[4:])
    assert (status, out) == (1, "")
    assert err.count("\n") == 1 and "out-of-bounds" in err
