"""--keep: what studies came to is in the store, and no store can take a study's own output away."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.cli import main
from harness.execution.protocol import Device
from harness.execution.results.kept_row import KeptRow
from harness.execution.results.rows import bench_rows
from harness.execution.results.store import Store
from harness.execution.run_settings import Effort
from harness.execution.timings import BenchResult, BenchRow, Ceilings
from harness.operations.attention.problem import Problem

PLUGIN = str(Path(__file__).parents[1] / "plugins" / "one_thread_per_row.py")
NAME = "one-thread-per-row"
SMALL = ("--seq-len", "20", "--head-dim", "8", "--device", "emulator")
CHOSEN = ("--plugin", PLUGIN, "--variants", NAME)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTENTION_SANDBOX_RESULTS_DIR", str(tmp_path / "kept"))
    monkeypatch.delenv("ATTENTION_SANDBOX_KEEP", raising=False)
    return tmp_path / "kept" / "results.sqlite"


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """The plugin with a wrong scale."""
    path = tmp_path / "wrong.py"
    path.write_text(Path(PLUGIN).read_text().replace("s *= tau;", "s *= 2.0f * tau;"))
    return path


def kept(store: Path) -> list[KeptRow]:
    with Store(store, create=False) as opened:
        return opened.rows()


def test_a_comparison_is_kept_as_it_is_told(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *CHOSEN, *SMALL, "--format", "json", "--keep"]) == 0
    told = capsys.readouterr()
    assert told.err == f"harness: stored 1 row in {store}\n"
    (shown,) = json.loads(told.out)["rows"]
    (row,) = kept(store)
    same = (
        "variant", "algorithm", "backend", "verdict", "reason", "max_abs_error", "compulsory_bytes", "claimed_bytes",
        "read_bytes", "write_bytes", "allocated_bytes", "launches", "time_ms",
    )  # fmt: skip
    assert {name: getattr(row, name) for name in same} == {name: shown[name] for name in same}
    # Of all outputs, as the table has it.
    assert row.error_over_budget == max(shown["error_over_budget"], shown["lse_error_over_budget"])
    assert json.loads(row.problem or "") == json.loads(told.out)["problem"] and row.headline is not None
    assert (row.study, row.regime, row.seed, row.driver) == ("compare", "normal", 0, None)
    assert (row.device_kind, row.arch) == ("emulator", "sm_90")
    assert len(row.kernel_digest or "") == 16
    assert {"python", "numpy"} <= set(json.loads(row.versions or ""))


def test_a_reason_that_no_file_takes_is_kept_as_its_escapes(
    store: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "surrogates.py"
    plugin.write_text(
        "from harness import Variant\n"
        "def plan(problem):\n    raise ValueError('lost \\ud83d half')\n"
        "def register(registry):\n    registry.add(Variant(name='half', plan=plan, algorithm='a\\udc00'))\n"
    )
    assert main(["compare", "--plugin", str(plugin), "--variants", "half", *SMALL, "--keep", "--format", "csv"]) == 1
    (row,) = kept(store)
    assert row.reason is not None and "lost \\ud83d half" in row.reason and row.algorithm == "a\\udc00"
    assert "lost \\ud83d half" in capfd.readouterr().out
    with Store(store, create=False) as opened:  # of a caller's own variant, whose texts come from no other process
        assert opened.keep([dataclasses.replace(row, reason="lost \ud83d")]) == 1
        assert opened.rows()[-1].reason == "lost \\ud83d"


@pytest.mark.parametrize("name", ["results.sqlite", "results.sqlite-wal"])
def test_a_link_in_the_place_of_the_store_spoils_nothing_of_the_users(
    store: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("what a plugin has put a link to\n" * 1000)
    store.parent.mkdir()
    (store.parent / name).symlink_to(mine)
    status = main(["compare", *CHOSEN, *SMALL, "--keep"])
    assert mine.read_text() == "what a plugin has put a link to\n" * 1000
    told = capsys.readouterr()
    assert "pass" in told.out and "Traceback" not in told.err and told.err.count("\n") == 1
    assert status == 2 or len(kept(store)) == 1


def test_without_a_word_nothing_is_kept_and_with_the_setting_everything(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *CHOSEN, *SMALL]) == 0
    assert not store.parent.exists()
    plain = capsys.readouterr()
    monkeypatch.setenv("ATTENTION_SANDBOX_KEEP", "always")
    assert main(["compare", *CHOSEN, *SMALL]) == 0
    assert capsys.readouterr() == plain  # not a word more
    assert len(kept(store)) == 1
    monkeypatch.setenv("ATTENTION_SANDBOX_KEEP", "yes")
    assert main(["compare", *CHOSEN, *SMALL]) == 2
    told = capsys.readouterr()
    assert "it is 'always', or unset" in told.err and told.out == ""


def test_traffic_is_kept_by_level(store: Path) -> None:
    assert main(["traffic", NAME, "--plugin", PLUGIN, *SMALL, "--l2-bytes", "1048576", "--keep"]) == 0
    (row,) = kept(store)
    account = harness.traffic(NAME, plugin=PLUGIN, seq_len=20, head_dim=8, device="emulator").result
    assert row.study == "traffic" and row.requested_bytes == account.level("requested").total_bytes
    sectors = account.level("sectors")
    assert (row.read_bytes, row.write_bytes) == (sectors.read_bytes, sectors.write_bytes)
    assert row.verdict == "pass" and row.error_over_budget == account.error_over_budget
    assert row.local_bytes == 0 and row.gpu_read_bytes is None


def test_a_sweep_is_kept_point_by_point_and_what_is_claimed_is_not_counted(store: Path) -> None:
    words = ("--sweep", "seq_len=8,16", "--head-dim", "8", "--device", "emulator", "--keep")
    names = f"{NAME},fa2-cupy,fa2-mma-cupy"
    assert main(["traffic", "--plugin", PLUGIN, "--variants", names, "--count", "never", *words]) == 0
    assert main(["traffic", *CHOSEN, *words]) == 0
    rows = kept(store)
    by = {(row.variant, json.loads(row.problem or "")["q_len"], row.read_bytes is not None): row for row in rows}
    assert len(by) == len(rows) == 8
    claimed = by["fa2-cupy", 8, False]
    assert claimed.claimed_bytes and claimed.kernel_digest is None and claimed.verdict == "pass"
    assert by["fa2-mma-cupy", 8, False].verdict == "unsupported"
    assert by[NAME, 16, True].kernel_digest is not None


def test_a_campaign_is_kept_with_its_failing_case(store: Path, wrong: Path) -> None:
    options = ("--examples", "30", "--seed", "1", "--device", "emulator", "--keep")
    assert main(["fuzz", NAME, "--plugin", str(wrong), *options]) == 1
    (row,) = kept(store)
    assert (row.study, row.seed, row.problem, row.verdict) == ("fuzz", 1, None, "fail")
    assert row.examples is not None and row.examples >= 1 and "heads" in json.loads(row.failing_case or "")
    assert main(["fuzz", NAME, "--plugin", PLUGIN, "--replay", "{}", "--keep"]) == 2


@pytest.mark.thorough
def test_a_tuning_is_kept_tile_by_tile(store: Path) -> None:
    assert main(["tune", "fa2-cupy", "--seq-len", "16", "--head-dim", "16", "--device", "emulator", "--keep"]) == 0
    rows = [row for row in kept(store) if row.variant == "fa2-cupy"]
    assert len(rows) > 2 and len({row.tile for row in rows}) == len(rows)
    assert all(row.study == "tune" and row.asked_tile == row.tile and row.kernel_digest for row in rows)


def test_times_are_kept_with_their_intervals_and_claims_as_claims() -> None:
    problem = Problem(heads=1)
    row = BenchRow(variant="torch-sdpa", kind="library", verdict="pass", time_ms=1.5, time_low_ms=1.4, time_high_ms=1.6,
                   sustained_ms=1.7, sector_bytes=99, error_over_budget=0.5)  # fmt: skip
    device, limits = Device("gpu", "a GPU", "sm_90"), Ceilings(1.0, 1.0, "float16")
    result = BenchResult(problem=problem, regime="normal", seed=3, device=device, driver="580.1", torch=None,
                         ceilings=limits, floor_ms=0.0, effort=Effort(), rows=(row,))  # fmt: skip
    (found,) = bench_rows("bench", result, [])
    assert (found.time_low_ms, found.time_ms, found.time_high_ms, found.sustained_ms) == (1.4, 1.5, 1.6, 1.7)
    assert (found.claimed_bytes, found.read_bytes, found.kernel_digest, found.driver) == (99, None, None, "580.1")
    assert (found.seed, found.device_kind, found.device) == (3, "gpu", "a GPU")


def damage(store: Path, how: str) -> None:
    if how == "a folder":
        store.mkdir(parents=True)
        return
    Store(store).close()
    content = store.read_bytes()
    if how == "truncated":
        store.write_bytes(content[:5000])
    elif how == "no database":
        store.write_bytes(b"not a database" * 1000)
    else:
        connection = sqlite3.connect(store)
        connection.execute("PRAGMA user_version = 99")
        connection.close()


@pytest.mark.parametrize("how", ["a folder", "truncated", "no database", "newer"])
def test_a_store_that_cannot_be_used_loses_nothing_of_the_study(
    store: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *CHOSEN, *SMALL]) == 0
    plain = capsys.readouterr().out
    damage(store, how)
    assert main(["compare", *CHOSEN, *SMALL, "--keep"]) == 2
    told = capsys.readouterr()
    assert told.out == plain
    assert str(store) in told.err and told.err.count("\n") == 1
    assert any(mend in told.err for mend in ("move it away", "update the sandbox"))


def test_from_python_the_result_comes_whatever_becomes_of_the_store(store: Path) -> None:
    options: dict[str, Any] = {"plugin": PLUGIN, "variants": NAME, "seq_len": 20, "head_dim": 8, "device": "emulator"}
    found = harness.compare(keep=True, **options)
    assert [row.variant for row in kept(store)] == [NAME] and found.passed
    store.write_bytes(b"not a database" * 1000)
    with pytest.warns(RuntimeWarning, match="is damaged"):
        again = harness.compare(keep=True, **options)
    assert again.result.rows == tuple(dataclasses.replace(row) for row in found.result.rows)


def test_what_failed_is_kept_too_and_the_status_says_so(store: Path, wrong: Path) -> None:
    assert main(["compare", "--plugin", str(wrong), "--variants", NAME, *SMALL, "--keep"]) == 1
    (row,) = kept(store)
    assert row.verdict == "fail" and "off by more than their budget" in (row.reason or "")
