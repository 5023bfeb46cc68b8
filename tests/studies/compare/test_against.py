"""`compare --against`: each variant beside itself as it was in git, or as it was kept."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.cli import main
from harness.execution.results.store import Store
from harness.studies.compare.against import Kept, parse_against

PLUGIN = Path(__file__).parents[2] / "plugins" / "one_thread_per_row.py"
NAME = "one-thread-per-row"


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def with_more_bytes(text: str) -> str:
    """Each thread reads an element of Q once more."""
    return text.replace("    float m = ", "    if (q[0] == 12345.0f) tau = 0.0f;\n    float m = ", 1)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plugin's history: not there, does not import, wrong, as it is; and an edit that is not committed."""
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "-q")
    (folder / "README").write_text("nothing yet")
    (folder / ".gitignore").write_text("__pycache__/\n")  # which importing a plugin leaves beside it
    right = PLUGIN.read_text()
    for tag, text in (
        ("empty", None),
        ("broken", "import nothing_like_that\n"),
        ("wrong", right.replace("s *= tau;", "s *= 2.0f * tau;")),
        ("right", right),
    ):
        if text is not None:
            (folder / "mine").mkdir(exist_ok=True)
            (folder / "mine" / "plugin.py").write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "-qm", tag)
        git(folder, "tag", tag)
    (folder / "mine" / "plugin.py").write_text(with_more_bytes(right))
    return folder


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTENTION_SANDBOX_RESULTS_DIR", str(tmp_path / "kept"))
    return tmp_path / "kept" / "results.sqlite"


def words(plugin: Path, *more: str) -> list[str]:
    chosen = ["--plugin", str(plugin), "--variants", NAME, "--seq-len", "20", "--head-dim", "8"]
    return ["compare", *chosen, "--device", "emulator", *more]


def document(capsys: pytest.CaptureFixture[str], plugin: Path, *more: str, status: int = 0) -> Any:
    assert main(words(plugin, "--format", "json", *more)) == status
    return json.loads(capsys.readouterr().out)


def complaint(capsys: pytest.CaptureFixture[str], plugin: Path, *more: str) -> str:
    assert main(words(plugin, *more)) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    return told.err


def test_an_edit_is_set_beside_what_is_committed(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = git(repository, "status", "--short")
    told = document(capsys, repository / "mine" / "plugin.py", "--against", "right")
    rows = {row["variant"]: row for row in told["rows"]}
    assert set(rows) == {NAME, f"{NAME}@right"}
    (beside,) = told["against"]["variants"]
    assert beside["changed"] == ["kernel_digest", "read_bytes"]
    assert beside["before"]["read_bytes"] == rows[f"{NAME}@right"]["read_bytes"] < rows[NAME]["read_bytes"]
    assert git(repository, "status", "--short") == before == " M mine/plugin.py\n"


@pytest.mark.thorough
def test_what_is_the_same_is_told_so(repository: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(words(repository / "mine" / "plugin.py", "--against", "right")) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " changed  total" in line]
    assert line.startswith(f"{NAME}  ") and " -> " in line and "error" not in line
    git(repository, "stash", "-q")
    try:
        assert main(words(repository / "mine" / "plugin.py", "--against", "HEAD")) == 0
    finally:
        git(repository, "stash", "pop", "-q")
    assert capsys.readouterr().out.count(" same    nothing\n") == 1


def test_how_it_was_is_no_failure_of_what_it_is(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = document(capsys, repository / "mine" / "plugin.py", "--against", "wrong", "--keep")
    assert {row["variant"]: row["verdict"] for row in told["rows"]} == {NAME: "pass", f"{NAME}@wrong": "fail"}
    assert {"verdict", "error_over_budget"} <= set(told["against"]["variants"][0]["changed"])
    assert main(["history", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["variant"] for row in rows] == [NAME]  # what is kept is what it is


@pytest.mark.thorough
def test_csv_says_what_a_row_is_beside(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(repository / "mine" / "plugin.py", "--against", "right", "--format", "csv")) == 0
    rows = {row["variant"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert rows[NAME]["changed"] == "kernel_digest read_bytes"
    assert rows[NAME]["against_total_bytes"] == rows[f"{NAME}@right"]["total_bytes"]
    assert rows[f"{NAME}@right"]["against"] == ""


@pytest.mark.parametrize(
    ("revision", "told"),
    [
        ("nonsense", "has no revision 'nonsense'; 'git log --oneline' shows some"),
        ("empty", f"--against empty: {NAME} did not exist at "),
        ("broken", "cannot be loaded as of "),
        ("kept:x", "'kept:x' is not kept, kept:ROW or kept:DATE"),
    ],
)
def test_what_cannot_be_had_is_one_line_before_anything_runs(
    repository: Path, revision: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in complaint(capsys, repository / "mine" / "plugin.py", "--against", revision)


def test_outside_of_a_repository_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "plugin.py").write_text(PLUGIN.read_text())
    assert "is not in a git repository" in complaint(capsys, tmp_path / "plugin.py", "--against", "HEAD")


def test_a_variant_of_this_process_is_nothing_that_git_knows(repository: Path) -> None:
    registry = harness.Registry()
    exec(compile(PLUGIN.read_text(), str(PLUGIN), "exec"), namespace := {"__name__": "own_variant"})
    namespace["register"](registry)
    with pytest.raises(harness.UsageError, match="is an object of this process, and git stores only files"):
        harness.compare(variants=list(registry), against="HEAD", seq_len=20, head_dim=8, device="emulator")


def test_the_newest_kept_row_of_other_kernels_is_set_beside(
    repository: Path, tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN.read_text())
    assert "there is no store of results" in complaint(capsys, plugin, "--against", "kept")
    assert main(words(plugin, "--keep")) == main(words(plugin, "--seed", "7", "--keep")) == 0
    capsys.readouterr()
    (same,) = document(capsys, plugin, "--against", "kept")["against"]["variants"]
    assert same["before"] is None and same["absent"] == "has no stored row for this problem with other kernels"
    plugin.write_text(with_more_bytes(PLUGIN.read_text()))
    assert main(words(plugin, "--keep")) == 0
    capsys.readouterr()
    (found,) = document(capsys, plugin, "--against", "kept")["against"]["variants"]
    assert found["changed"] == ["kernel_digest", "read_bytes"] and found["then"].startswith("row 1, 20")
    (row,) = document(capsys, plugin, "--against", "kept:3")["against"]["variants"]
    assert row["changed"] == [] and row["before"]["kernel_digest"] == row["after"]["kernel_digest"]
    assert "that row is of another problem or device: compare" in complaint(capsys, plugin, "--against", "kept:2")
    assert "there is no such row" in complaint(capsys, plugin, "--against", "kept:9")
    assert "no result of" in complaint(capsys, plugin, "--against", "kept:2020-01-01")
    assert "no result of" in complaint(capsys, plugin, "--against", "kept", "--seed", "8")
    (latest,) = document(capsys, plugin, "--against", "kept:2999-01-01")["against"]["variants"]
    assert latest["then"].startswith("row 3, 20")
    with Store(store) as opened:
        assert len(opened.rows()) == 3


def test_what_against_may_say() -> None:
    assert parse_against("main~3") == "main~3" and parse_against("keptsake") == "keptsake"
    assert parse_against("kept") == Kept() and parse_against("kept:12") == Kept(id=12)
    assert parse_against("kept:2026-03-01") == Kept(until="2026-03-01T23:59:59.999Z")
    assert parse_against("kept:2026-03-01T10:00:00Z") == Kept(until="2026-03-01T10:00:00.999Z")


def test_modules_of_variants_come_from_their_own_past(tmp_path: Path) -> None:
    from harness.execution.isolation.variants import discover_isolated
    from harness.studies.compare.past_variants import variants_at

    module = tmp_path / "variants" / "attention" / "mine.py"
    module.parent.mkdir(parents=True)
    (tmp_path / "variants" / "__init__.py").write_text("")
    (tmp_path / "variants" / "shared.py").write_text("IDEA = 'as it was'\n")
    module.write_text(
        "from harness import Variant\nfrom variants.shared import IDEA\n"
        "def register(registry):\n    registry.add(Variant(name='mine', plan=None, idea=IDEA))\n"
    )
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    (tmp_path / "variants" / "shared.py").write_text("IDEA = 'as it is'\n")
    found = discover_isolated(folder=tmp_path)
    (now,) = found.registry.select("mine")
    with variants_at("HEAD", [now], found, root=tmp_path) as past:
        assert (now.idea, past.variants["mine"].idea) == ("as it is", "as it was")
        assert past.variants["mine"].name == "mine@HEAD"
