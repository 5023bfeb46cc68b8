"""The studies as functions: the very table and document of the command, as objects, and its very complaints."""

from __future__ import annotations

import dataclasses
import html
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harness
from harness import Problem, Registry, SoftmaxProblem, UsageError, Variant
from harness.cli import main
from harness.execution.isolation.native import IsolatedExecutor
from harness.execution.protocol import Device
from harness.studies.calls import compare, fuzz, traffic
from harness.support.errors import PluginError

PLUGIN = Path(__file__).parents[1] / "plugins" / "one_thread_per_row.py"
SMALL = {"seq_len": 32}
NAMES = "fa1-cupy,fa2-cupy"


@pytest.fixture(scope="module")
def compared() -> Any:
    return compare(variants=NAMES, device="emulator", **SMALL)


def own_variant(name: str = "mine") -> Variant:
    """The plugin's variant as an object of this process."""
    registry = Registry()
    namespace: dict[str, Any] = {"__name__": "own_variant"}
    exec(compile(PLUGIN.read_text(), str(PLUGIN), "exec"), namespace)
    namespace["register"](registry)
    return dataclasses.replace(next(iter(registry)), name=name)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_it_shows_what_the_command_prints(compared: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare", "--variants", NAMES, "--seq-len", "32", "--device", "emulator")
    assert f"{compared!r}\n" == printed(capsys, *words)
    assert compared._repr_markdown_() == printed(capsys, *words, "--format", "markdown")
    assert compared.to_dict() == json.loads(printed(capsys, *words, "--format", "json"))
    assert compared.render("csv") == printed(capsys, *words, "--format", "csv")
    assert compared.passed and compared.ran


def test_rows_and_data_are_at_hand(compared: Any) -> None:
    assert [row["variant"] for row in compared.rows] == [row.variant for row in compared.result.rows]
    assert compared.rows[0]["read_bytes"] == compared.result.rows[0].read_bytes > 0
    assert compared.rows[0]["time_ms"] is None  # unknown, not 0


def test_html_has_each_cell_once_and_escapes(compared: Any) -> None:
    html = compared._repr_html_()
    assert html.count("<tr>") == 3 and html.count(">fa2-cupy<") == 1
    assert "<script" not in html and "<style" not in html
    assert "float32" in html and "read<br>MiB" in html
    failed = compare(Problem(q_len=32, kv_len=32, mask="prefix:3"), variants=own_variant("a&b<i>"), device="emulator")
    assert not failed.ran and not failed.passed
    assert "a&amp;b&lt;i&gt;" in failed._repr_html_() and "b<i>" not in failed._repr_html_()


def test_a_problem_is_given_whole_or_by_its_fields(compared: Any) -> None:
    problem = Problem(q_len=32, kv_len=32)
    assert compare(problem, NAMES, device="emulator").to_dict() == compared.to_dict()
    rows = SoftmaxProblem(rows=3, columns=40)
    assert compare(rows, "softmax-online-cupy", device="emulator").result.problem == rows
    with pytest.raises(UsageError, match="already has heads; pass a problem or fields"):
        compare(problem, heads=4)
    with pytest.raises(UsageError, match="is not a problem"):
        compare("fa2-cupy")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="of attention, not of softmax"):
        compare(problem, operation="softmax")


def test_a_variant_is_a_name_an_object_or_in_a_file() -> None:
    found = compare(variants=["fa2-cupy", own_variant()], plugin=PLUGIN, device="emulator", **SMALL)
    assert [(row.variant, row.verdict) for row in found.result.rows] == [("fa2-cupy", "pass"), ("mine", "pass")]
    found = compare(variants="one-thread-per-row", plugin=[PLUGIN], device="emulator", **SMALL)
    account = traffic(own_variant(), device="emulator", **SMALL).result
    assert found.result.rows[0].total_bytes == account.level("sectors").total_bytes
    with pytest.raises(PluginError, match="has registered that name already"):
        compare(variants=own_variant("fa2-cupy"), **SMALL)
    with pytest.raises(UsageError, match="names or patterns"):
        compare(variants=[3])  # type: ignore[list-item]


def test_a_wrong_variant_does_not_pass() -> None:
    found = compare(variants="wrong-claim", plugin=PLUGIN.with_name("wrong_claim.py"), seq_len=128, mask="causal")
    assert not found.passed and any(row.verdict == "fail" for row in found.result.rows)


def test_a_sweep_has_points_and_pictures() -> None:
    found = traffic(variants="fa2-cupy", sweep="seq_len=16,32", count="never")
    assert [point.value for point in found.result] == [16, 32]
    assert found.picture()._repr_svg_().startswith("<?xml")
    assert found.picture("roofline", ".png")._repr_png_().startswith(b"\x89PNG")
    assert found.picture("roofline", ".png")._repr_svg_() is None
    with pytest.raises(UsageError, match="no picture 'pie'; pictures: bytes, roofline"):
        found.picture("pie")
    with pytest.raises(UsageError, match=r"\.png or \.svg"):
        found.picture("bytes", ".gif")
    with pytest.raises(UsageError, match="a sweep creates its own problems"):
        traffic(problem=Problem(), sweep="seq_len=16,32")


def test_a_campaign_and_one_case_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.studies.fuzz.database.failure_folder", lambda variant, origin: tmp_path / variant)
    found = fuzz("one-thread-per-row", plugin=PLUGIN, examples=3, seed=1, properties="none", device="emulator")
    assert found.passed and found.result[0].examples == 3 and "one-thread-per-row" in repr(found)
    again = fuzz("fa2-cupy", replay='{"q_len":3,"kv_len":5}', device="emulator")
    assert again.passed and again.result[2].error_over_budget > 0 and "passes" in repr(again)
    with pytest.raises(UsageError, match="is an object of this process"):
        fuzz(own_variant())


def test_mistakes_are_the_command_lines_own_words() -> None:
    with pytest.raises(UsageError, match=r"compare\(\) has no option 'seqlen'; did you mean 'seq_len'\?"):
        compare(seqlen=3)
    with pytest.raises(UsageError, match="there is no 'windw'; did you mean 'window'"):
        compare(mask="windw:3")
    with pytest.raises(UsageError, match="did you mean 'fa2-cupy'"):
        compare(variants="fa2-cupi")
    with pytest.raises(UsageError, match="variant and variants both select"):
        traffic("fa2-cupy", variants="fa1-cupy")
    with pytest.raises(UsageError, match="has no option 'output', which exists only on the command line"):
        compare(output="x")  # what is shown goes to the caller
    with pytest.raises(UsageError, match="mask is an array with 2 axes; pass what --mask takes on"):
        compare(mask=np.ones((9, 9), bool))
    with pytest.raises(UsageError, match="dtype is 'float64'"):
        compare(dtype=np.float64)


def test_on_a_gpu_an_object_runs_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device("gpu", "Some GPU", "sm_90")
    there = IsolatedExecutor(gpu, "tests.execution.isolation.fake_gpu:FakeGpu")
    monkeypatch.setattr("harness.studies.compare.command.sanitizing", lambda settings, plugins, progress: (there, None))
    found = compare(variants=[own_variant(), "fa2-cupy"], count="never", **SMALL)
    assert {row.variant: (row.verdict, row.time_ms) for row in found.result.rows} == {
        "mine": ("pass", 2.0),
        "fa2-cupy": ("pass", 2.0),
    }


def test_without_a_gpu_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.gpu.context.gpu_available", lambda: False)
    with pytest.raises(UsageError, match="bench needs a GPU"):
        harness.bench()


def test_a_script_without_a_guard_may_call_them(tmp_path: Path) -> None:
    # Worker processes that were started with the script as their main module would run it once more.
    script = tmp_path / "script.py"
    script.write_text(
        "import harness, sys\n"
        "assert 'numpy' not in sys.modules\n"
        "found = harness.fuzz('fa2-cupy', replay='{\"q_len\":3,\"kv_len\":5}', device='emulator')\n"
        "print(found.passed)\n"
    )
    root = Path(harness.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PYTHONPATH": str(root)},
        check=False,
    )
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


def test_why_is_the_command_s_table(capsys: pytest.CaptureFixture[str]) -> None:
    explained = harness.why("fa1-cupy", "fa2-cupy", gpu="h200", **SMALL)
    words = ("why", "fa1-cupy", "fa2-cupy", "--gpu", "h200", "--seq-len", "32")
    assert f"{explained!r}\n" == printed(capsys, *words)
    assert explained.rows[0]["variant"] == "fa1-cupy"
    assert explained.rows[0]["cost_us"] >= explained.rows[1]["cost_us"]


def test_a_report_is_a_page_that_a_notebook_frames(tmp_path: Path) -> None:
    shown = harness.report(variants=NAMES, device="emulator", **SMALL)
    shown.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and page == shown.page
    assert [row["variant"] for row in shown.rows] == [row.variant for row in shown.result.rows]
    framed = shown._repr_html_()
    assert framed.startswith("<iframe ") and "<script" not in framed  # escaped, all of it
    assert html.unescape(framed.split('srcdoc="')[1].removesuffix('"></iframe>')) == page


def test_a_report_cannot_be_asked_for_a_file() -> None:
    with pytest.raises(UsageError, match="no option 'output'"):
        harness.report(variants=NAMES, output="page.html")
