"""Whatever a plugin does, it does to its own process: an error of its variant, in every study, and the others come."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from lanes import exhaustive_unless

from harness.cli import main
from harness.execution.isolation import process
from harness.execution.isolation.variants import discover_isolated
from harness.model.operation import draw_inputs
from harness.operations.attention.problem import Problem

pytestmark = pytest.mark.compiles

PLUGINS = Path(__file__).parents[2] / "plugins"
HOSTILE = ["--plugin", str(PLUGINS / "hostile.py")]
RIGHT = ["--plugin", str(PLUGINS / "one_thread_per_row.py")]
NAME = "one-thread-per-row"
SMALL = ["--heads", "1", "--q-len", "4", "--kv-len", "6", "--head-dim", "4", "--device", "emulator"]
REASONS = {
    "ends": "exit status 0",
    "crashes": "signal SIGSEGV",
    "loops": "no answer within",
    "sleeps": "no answer within",
    "interrupts": "KeyboardInterrupt",
    "exits": "SystemExit: 0",
    "exits-a-generator": "GeneratorExit",
}
PLACES = ("plan", "supports", "claim", "tiles")


def each_once(studies: list[str]) -> list[object]:
    """Each study with each deed; the default lane has every one of both once."""
    deeds = ["ends", "crashes", "loops", "interrupts", "exits"]
    kept = {(studies[number % len(studies)], deed) for number, deed in enumerate(deeds)}
    return exhaustive_unless(kept.__contains__, [(study, deed) for study in studies for deed in deeds])


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes no time here is given little, and who sleeps is not waited for long."""
    monkeypatch.setattr(process, "CALL_SECONDS", 0.5)
    monkeypatch.setattr(process, "LOAD_SECONDS", 1.0)
    monkeypatch.setattr(process, "PATIENCE", 4.0)


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]):
    def run(*arguments: str) -> tuple[int, str, str]:
        status = main([str(each) for each in arguments])
        captured = capfd.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return status, captured.out, captured.err

    return run


def rows_of(out: str) -> dict[str, dict[str, object]]:
    return {row["variant"]: row for row in json.loads(out)["rows"]}


@pytest.mark.parametrize("place", exhaustive_unless(lambda place: place == "claim", PLACES))
def test_compare_has_a_row_for_each_and_the_right_one_passes(call, place: str):
    names = [f"{deed}-in-{place}" for deed in REASONS]
    variants = ["--variants", ",".join([*names, NAME])]
    status, out, _ = call("compare", *SMALL, *HOSTILE, *RIGHT, *variants, "--format", "json")
    rows = rows_of(out)
    assert status == 1 and rows[NAME]["verdict"] == "pass"
    for name, reason in zip(names, REASONS.values(), strict=True):
        row = rows[name]
        assert row["verdict"] in ("error", "fail") and row["verdict"] != "pass", row
        assert reason in row["reason"] and f"{place}()" in row["reason"], row


@pytest.mark.parametrize(("study", "deed"), each_once(["traffic", "tune", "show", "order", "run"]))
def test_a_study_of_one_variant_says_what_its_code_did(call, tmp_path: Path, study: str, deed: str):
    name = f"{deed}-in-plan"
    problem = SMALL[:-2] if study == "show" else SMALL
    words = {
        "traffic": ["traffic", name, *problem],
        "tune": ["tune", f"{deed}-in-tiles", *problem],
        "show": ["show", name, *problem],
        "order": ["show", name, "--order", *problem],
        "run": ["run", name, *arrays(tmp_path), "--device", "emulator"],
    }[study]
    status, out, err = call(*words, *HOSTILE)
    assert status == 1
    assert REASONS[deed] in out + err and "()" in out + err


def arrays(folder: Path) -> list[str]:
    inputs = draw_inputs(Problem(heads=1, q_len=4, kv_len=6, head_dim=4))
    for name, array in inputs.items():
        np.save(folder / f"{name}.npy", array)
    return [*(w for n in inputs for w in (f"--{n.lower()}", f"{folder / n}.npy")), "--out", str(folder / "out.npy")]


@pytest.mark.exhaustive
def test_a_sweep_has_its_points_and_the_right_one_is_counted(call):
    variants = f"ends-in-plan,loops-in-claim,crashes-in-supports,{NAME}"
    sweep = ["--sweep", "kv_len=6,7", "--variants", variants, "--format", "json"]
    rest = [word for word in SMALL if word not in ("--kv-len", "6")]
    status, out, _ = call("traffic", *sweep, *rest, *HOSTILE, *RIGHT)
    assert status == 1
    points = {(point["variant"], point["value"]): point for point in json.loads(out)["points"]}
    assert points[NAME, 6]["source"] == points[NAME, 7]["source"] == "counted"
    for name, reason in (
        ("ends-in-plan", "status 0"),
        ("loops-in-claim", "no answer"),
        ("crashes-in-supports", "SEGV"),
    ):
        assert reason in points[name, 6]["reason"] and reason in points[name, 7]["reason"]


FOUND = [("ends", "crash"), ("crashes", "crash"), ("interrupts", "plan error"), ("exits", "plan error")]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("deed", "kind"), FOUND)
def test_fuzz_finds_it(call, deed: str, kind: str):
    campaign = ["fuzz", f"{deed}-in-plan", "--examples", "2", "--seed", "1", "--device", "emulator"]
    status, out, _ = call(*campaign, *HOSTILE, "--format", "json")
    (found,) = json.loads(out)["campaigns"]
    assert (status, found["verdict"]) == (1, "fail")
    assert REASONS[deed] in found["reason"] and found["reason"].startswith(kind)


@pytest.mark.parametrize(("study", "how"), each_once(["list", "compare", "fuzz"]))
def test_a_plugin_whose_import_does_it_is_named(call, how: str, study: str):
    plugin = str(PLUGINS / "hostile_imports" / f"{how}.py")
    status, out, err = call(study, "--plugin", plugin)
    assert (status, out) == (2, "")
    assert f"plugin {plugin} could not be imported: " in err and REASONS[how] in err


@pytest.mark.parametrize("how", exhaustive_unless(lambda how: how == "ends", ["ends", "loops"]))
def test_a_hostile_module_costs_only_its_own_rows(call, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "hostile_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    shutil.copy(PLUGINS / "hostile_imports" / f"{how}.py", package / "a_bad_one.py")
    shutil.copy(PLUGINS / "one_thread_per_row.py", package / "right.py")
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(discover_isolated, "__defaults__", ((), "hostile_package", None))
    status, out, err = call("compare", *SMALL, "--format", "json")
    rows = rows_of(out)
    assert (status, [*rows]) == (1, [NAME, "a_bad_one"])
    assert rows[NAME]["verdict"] == "pass" and rows["a_bad_one"]["verdict"] == "error"
    assert REASONS[how] in rows["a_bad_one"]["reason"] and REASONS[how] in err
    status, out, err = call("list", "--format", "json")
    assert status == 0 and [each["name"] for each in json.loads(out)["variants"]] == [NAME]
    assert "module hostile_package.a_bad_one could not be imported: " in err and REASONS[how] in err


def test_a_tile_that_is_asked_for_changes_nothing_about_it(call):
    mine = ["--variants", f"ends-in-supports,crashes-in-tiles,{NAME}", "--tile", "Br=64"]
    status, out, _ = call("compare", *SMALL, *HOSTILE, *RIGHT, *mine, "--format", "json")
    rows = rows_of(out)
    assert status == 1 and "exit status 0" in rows["ends-in-supports"]["reason"]
    assert "SIGSEGV" in rows["crashes-in-tiles"]["reason"] and rows[NAME]["verdict"] == "unsupported"


def test_the_oracle_is_out_of_reach(call):
    """Of a plan, and of an import: what is wrong is found wrong in every study that holds answers."""
    meddling = ["--plugin", str(PLUGINS / "hostile_at_import.py"), *HOSTILE]
    long = ["--heads", "1", "--q-len", "100", "--kv-len", "6", "--head-dim", "4", "--device", "emulator"]
    status, out, _ = call("compare", *long, *meddling, "--variants", "meddling,wrong-answer", "--format", "json")
    assert status == 1
    assert all("were never written" in row["reason"] for row in rows_of(out).values()) and len(rows_of(out)) == 2
    status, out, _ = call("fuzz", "wrong-answer", "--examples", "60", "--seed", "1", *meddling, "--device", "emulator")
    assert status == 1 and "wrong answer" in out


def test_a_claim_cannot_have_seen_what_was_counted(call):
    mine = [*SMALL, *HOSTILE]
    status, out, _ = call("compare", *mine, "--variants", "copies-counts", "--format", "json")
    row = rows_of(out)["copies-counts"]
    assert (status, row["verdict"], row["claimed_bytes"]) == (1, "fail", 14)
    assert "claims 7 bytes read and 7 written; counted: " in row["reason"]
    assert call("traffic", "copies-counts", *mine)[0] == 1


def test_what_it_writes_to_standard_output_is_in_no_answer(call):
    name = "writes-into-every-pipe-in-plan"
    status, out, _ = call("compare", *SMALL, *HOSTILE, "--variants", name, "--format", "json")
    assert (status, rows_of(out)[name]["verdict"]) == (0, "pass")
    status, out, _ = call("traffic", name, *SMALL, *HOSTILE, "--format", "json")
    assert status == 0 and json.loads(out)


def test_a_launch_that_no_gpu_takes_is_refused(call):
    status, out, _ = call("compare", *SMALL, *HOSTILE, "--variants", "negative-shared-memory", "--format", "json")
    (row,) = rows_of(out).values()
    assert (status, row["verdict"]) == (1, "error")
    assert "kernel one_thread_per_row: its shared_bytes is -1" in row["reason"]
    for words in (["traffic", "negative-shared-memory"], ["show", "negative-shared-memory"]):
        status, _, err = call(*words, *SMALL[: 8 if words[0] == "show" else None], *HOSTILE)
        assert status == 1 and "shared_bytes is -1" in err


def test_an_answer_that_is_right_for_the_named_seed_only_is_found(call):
    mine = [*SMALL, *HOSTILE, "--variants", "memorised", "--format", "json"]
    status, out, _ = call("compare", *mine)
    (row,) = rows_of(out).values()
    assert (status, row["verdict"]) == (1, "fail") and row["error_over_budget"] < 1
    seed = re.search(r"not with --seed (\d+): ", row["reason"])
    assert seed is not None
    status, out, _ = call("compare", *mine, "--seed", seed[1])
    assert status == 1 and rows_of(out)["memorised"]["error_over_budget"] > 1


@pytest.mark.thorough
def test_a_large_problem_is_checked_with_a_second_draw_as_well(call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "CALL_SECONDS", 60.0)  # the plan works out the answer that it memorises
    large = Problem(heads=1, q_len=1024, kv_len=2**13, head_dim=64)
    assert large.flops > 2e9
    sizes = ["--heads", "1", "--q-len", "1024", "--kv-len", str(2**13), "--head-dim", "64", "--device", "emulator"]
    status, out, _ = call("compare", *sizes, *HOSTILE, "--variants", "memorised", "--format", "json")
    (row,) = rows_of(out).values()
    assert (status, row["verdict"]) == (1, "fail")
    assert "correct for the given seed, but not with --seed " in row["reason"]
    assert row["note"] is None


def test_an_answer_without_reading_is_found_by_its_bytes(call):
    status, out, _ = call("compare", *SMALL, *HOSTILE, "--variants", "unread", "--format", "json")
    (row,) = rows_of(out).values()
    needed = 4 * (4 * 4 + 2 * 6 * 4)
    assert status == 1 and f"the answer to these inputs takes {needed:,} and {4 * 4 * 4:,} at least" in row["reason"]


def test_no_planner_outlives_its_command(call):
    call("compare", *SMALL, *HOSTILE, "--variants", "loops-in-plan")
    assert not any(each._process for each in process._alive)
