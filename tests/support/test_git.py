"""What a repository has of the past, taken out without touching what is checked out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.studies.compare.past_variants import NoSuchFile, commit_of, extract, repository_of
from harness.support.errors import UsageError


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits: a file changes, another comes."""
    folder = tmp_path / "repository"
    (folder / "deep").mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "deep" / "a.py").write_text("one")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    git(folder, "tag", "first")
    (folder / "deep" / "a.py").write_text("two")
    (folder / "b.py").write_text("b")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "two")
    return folder


def test_files_come_as_they_were_and_nothing_else_changes(repository: Path, tmp_path: Path) -> None:
    (repository / "deep" / "a.py").write_text("not committed")
    before = git(repository, "status", "--short", "--branch")
    commit = commit_of(repository_of(repository / "deep" / "a.py"), "first")
    assert commit.digest == git(repository, "rev-parse", "first").strip() and commit.digest.startswith(commit.short)
    out = tmp_path / "out"
    out.mkdir()
    extract(commit, ["deep"], out)
    assert {str(p.relative_to(out)) for p in out.rglob("*")} == {"deep", "deep/a.py"}
    assert (out / "deep" / "a.py").read_text() == "one"
    assert (repository / "deep" / "a.py").read_text() == "not committed"
    assert git(repository, "status", "--short", "--branch") == before


def test_a_file_that_came_later_is_not_there(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match=r"b\.py did not exist at [0-9a-f]{9}$"):
        extract(commit_of(repository, "HEAD~1"), ["b.py"], tmp_path)


@pytest.mark.parametrize("revision", ["nonsense", "", "--all", "HEAD~7", "first:deep", "a\0b"])
def test_what_is_no_revision_is_one_line(repository: Path, revision: str) -> None:
    with pytest.raises(UsageError, match=r"has no revision .*; 'git log --oneline' shows some") as error:
        commit_of(repository, revision)
    assert "\n" not in str(error.value)


def test_a_folder_of_no_repository_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(
        UsageError, match=r"is not in a git repository, .*--against kept compares with stored results"
    ) as error:
        repository_of(tmp_path)
    assert "\n" not in str(error.value)


def test_without_git_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="git is not installed"):
        repository_of(tmp_path)
