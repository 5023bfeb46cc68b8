"""Attacks on the judge, its tables, its processes and its files: none is called right, and none leaves anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lanes import thorough_unless

from harness.cli import main
from harness.execution.isolation import process

pytestmark = pytest.mark.compiles

PLUGINS = Path(__file__).parents[2] / "plugins"
RIGHT = "one-thread-per-row"
SMALL = ["--heads", "2", "--q-len", "4", "--kv-len", "6", "--head-dim", "4", "--device", "emulator"]
sys.path.insert(0, str(PLUGINS))
from hostile_battery import ATTACKS, KERNELS, OBJECTS  # noqa: E402

IN_DEFAULT = (
    "replaces-judging", "sends-answers", "sends-pickles", "kills-its-group", "leaves-daemons", "opens-the-terminal",
    "always-equal-grid", "claims-thousands-of-digits", "stale-outputs", "raises-what-cannot-be-shown",
)  # fmt: skip


@dataclass(frozen=True)
class Battle:
    """One comparison of attacks and of the right variant."""

    status: int
    rows: dict[str, dict[str, Any]]
    error_output: str
    mark: Path
    strays: list[str]


@pytest.fixture(scope="module")
def battle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Battle:
    """Of those attacks that this lane runs, in one call; what spoils its process has one to itself."""
    chosen = [
        item.callspec.params["attack"]
        for item in request.session.items
        if item.path == request.path and "attack" in getattr(getattr(item, "callspec", None), "params", {})
    ]
    folder = tmp_path_factory.mktemp("battle")
    mark, result = folder / "mark", folder / "result.json"
    words = ["compare", *SMALL, "--plugin", str(PLUGINS / "one_thread_per_row.py")]
    words += ["--plugin", str(PLUGINS / "hostile_battery.py"), "--variants", ",".join([RIGHT, *chosen])]
    words += [word for name in chosen if name not in (*OBJECTS, *KERNELS) for word in plugin_of(name, folder)]
    with pytest.MonkeyPatch.context() as patch, (folder / "stderr").open("w+b") as errors:
        patch.setattr(process, "CALL_SECONDS", 1.0)
        patch.setattr(process, "PATIENCE", 4.0)
        patch.setattr(process, "planner_bytes", lambda: 2**30)
        patch.setenv("HOSTILE_MARK", str(mark))
        patch.setattr("sys.stderr", os.fdopen(os.dup(errors.fileno()), "w"))
        status = main([*words, "--format", "json", "--output", str(result)])
        sys.stderr.close()
        errors.seek(0)
        shown = errors.read().decode()
    assert result.exists(), shown
    rows = {row["variant"]: row for row in json.loads(result.read_text())["rows"]}
    return Battle(status, rows, shown, mark, strays(mark))


def plugin_of(deed: str, folder: Path) -> list[str]:
    """The options for one attack in a plugin file of its own, and so in a process of its own."""
    plugin = folder / f"{deed}.py"
    plugin.write_text(
        f"import sys\nsys.path.insert(0, {str(PLUGINS)!r})\nfrom hostile_battery import deed_variant\n"
        f"def register(registry):\n    registry.add(deed_variant({deed!r}))\n"
    )
    return ["--plugin", str(plugin)]


def strays(mark: Path) -> list[str]:
    """Processes that the attacks with this mark have started and that are still there."""
    return subprocess.run(["pgrep", "-f", f"stray of {mark}"], capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize("attack", thorough_unless(IN_DEFAULT.__contains__, ATTACKS))
def test_no_attack_is_called_right(attack: str, battle: Battle):
    row = battle.rows[attack]
    assert row["verdict"] in ("fail", "error", "unsupported") and row["rank"] is None, row
    assert re.search(ATTACKS[attack], row["reason"]), row["reason"]
    assert "Traceback" not in row["reason"]


def test_the_right_one_among_them_passes_and_nothing_of_them_is_left(battle: Battle):
    assert battle.status == 1
    assert battle.rows[RIGHT]["verdict"] == "pass" and battle.rows[RIGHT]["rank"] == 1
    assert [name for name, row in battle.rows.items() if row["verdict"] == "pass"] == [RIGHT]
    assert not battle.mark.exists() and battle.strays == []
    assert all(c.isprintable() or c in "\n\t" for c in battle.error_output)
    assert not any(each._process for each in process._alive)


@pytest.mark.thorough
def test_the_command_ends_what_lost_its_supervisor(tmp_path: Path):
    name = "leaves-daemons-to-nobody"
    mark = tmp_path / "mark"
    words = ["compare", *SMALL, *plugin_of(name, tmp_path), "--variants", name]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words],
        env={**os.environ, "HOSTILE_MARK": str(mark)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1 and "fail" in done.stdout + done.stderr
    assert strays(mark) == []


@pytest.mark.thorough
def test_a_spoilt_cache_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    cache = tmp_path / "cache"
    monkeypatch.setenv("ATTENTION_SANDBOX_CACHE_DIR", str(cache))
    monkeypatch.setenv("HOSTILE_CACHE", str(cache))
    right = ["compare", *SMALL, "--plugin", str(PLUGINS / "one_thread_per_row.py"), "--variants", RIGHT]
    assert main(right) == 0
    before = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    assert before
    spoiling = [*plugin_of("spoils-the-cache", tmp_path), "--variants", "spoils-the-cache"]
    assert main(["compare", *SMALL, *spoiling]) == 1
    assert any(path.read_bytes() != content for path, content in before.items() if path.exists())
    capsys.readouterr()
    assert main(right) == 0
    assert "pass" in capsys.readouterr().out
