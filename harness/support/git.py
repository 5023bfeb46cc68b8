"""Reads a git repository's past: revisions and files. The repository is not modified."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.support.errors import UsageError
from harness.support.numbers import shown

SHORT_DIGITS = 9
"""Number of digits of a commit's short name."""


@dataclass(frozen=True)
class Commit:
    """One commit of one repository."""

    repository: Path
    """Top folder of the repository."""
    digest: str
    """The full hash of 40 digits."""
    date: str
    """Date of the commit, such as `2026-03-01`."""

    @property
    def short(self) -> str:
        """The abbreviated hash."""
        return self.digest[:SHORT_DIGITS]


class NoSuchFile(UsageError):
    """A commit has no file with that name."""


def repository_of(path: Path) -> Path:
    """Top folder of the repository that contains a file or folder. Raises `UsageError` if there is none."""
    folder = path if path.is_dir() else path.parent
    done = _git(folder, "rev-parse", "--show-toplevel")
    if done.returncode:
        raise UsageError(
            f"{folder} is in no git repository, so that nothing is known of how it was ({_said(done)}); "
            "--against kept compares with what was kept"
        )
    return Path(done.stdout.decode().rstrip("\n"))


def commit_of(repository: Path, revision: str) -> Commit:
    """The commit that a branch, tag or hash names. Raises `UsageError` if there is none."""
    wrong = UsageError(f"{repository} has no revision {shown(revision)}; 'git log --oneline' shows some")
    if not revision or revision.startswith("-") or "\0" in revision:
        raise wrong
    done = _git(repository, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if done.returncode:
        raise wrong
    digest = done.stdout.decode().strip()
    return Commit(repository, digest, _git(repository, "show", "-s", "--format=%cs", digest).stdout.decode().strip())


def extract(commit: Commit, paths: Sequence[str], target: Path) -> None:
    """Write these files and folders, relative to the repository, as of the commit, into an existing folder.

    Raises `NoSuchFile` if the commit lacks one of them.
    """
    for path in paths:
        if _git(commit.repository, "cat-file", "-e", f"{commit.digest}:{path}").returncode:
            raise NoSuchFile(f"{path} did not exist at {commit.short}")
    done = _git(commit.repository, "archive", "--format=tar", commit.digest, "--", *paths)
    if done.returncode:
        raise UsageError(f"git cannot give out {', '.join(paths)} at {commit.short}: {_said(done)}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(target, filter="data")
        else:  # a Python before that was brought to all of them
            archive.extractall(target)


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", "-C", str(folder), *words], stdin=subprocess.DEVNULL, capture_output=True)
    except FileNotFoundError as error:
        raise UsageError("git is not installed; --against kept compares with what was kept, without it") from error


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    return " ".join(done.stderr.decode(errors="replace").split())
