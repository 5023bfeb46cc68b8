"""Loads variants as of a git revision.

Their files are extracted to a folder, and their code runs in separate processes. They run under the current harness,
with its oracle, its budgets and its emulator.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.execution.isolation.variants import discover_isolated, variants_of
from harness.model.discovery import MODULE, PLUGIN, REPOSITORY_ROOT, Discovery, Origin
from harness.model.variant import Variant
from harness.support.errors import PluginError, UsageError
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
            f"{folder} is not in a git repository, so its earlier versions are unknown ({_said(done)}); "
            "--against kept compares with stored results"
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
        raise UsageError(f"git cannot read {', '.join(paths)} at {commit.short}: {_said(done)}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(target, filter="data")
        else:  # a Python before that was brought to all of them
            archive.extractall(target)


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", "-C", str(folder), *words], stdin=subprocess.DEVNULL, capture_output=True)
    except FileNotFoundError as error:
        raise UsageError("git is not installed; --against kept compares with stored results without it") from error


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    return " ".join(done.stderr.decode(errors="replace").split())


_SHORT = re.compile(r"[\w./~^-]{1,24}")
"""Revisions that are short enough to be part of a variant's name."""


@dataclass(frozen=True)
class PastVariants:
    """Earlier versions of some variants."""

    revision: str
    """Display name of the revision."""
    variants: Mapping[str, Variant] = field(default_factory=dict)
    """Earlier version, named `NAME@REVISION`, by the current variant's name."""
    commits: Mapping[str, Commit] = field(default_factory=dict)
    """Commit of the earlier version, by the current variant's name."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Reason why there is no earlier version, by the current variant's name."""


@contextlib.contextmanager
def variants_at(
    revision: str, chosen: Iterable[Variant], found: Discovery, root: Path = REPOSITORY_ROOT
) -> Iterator[PastVariants]:
    """Load these variants as of a revision, until the block ends.

    `root` is the current folder of the package `variants`.

    Raises `UsageError` if there is no such revision or repository, or if no variant can be loaded.
    """
    names = [variant.name for variant in chosen]
    with tempfile.TemporaryDirectory(prefix="attention-sandbox-revision-") as folder:
        past = _past_variants(revision, names, found, root, Path(folder))
        if not past.variants:
            name, reason = next(iter(past.absent.items()))
            others = f"; the same holds for {len(past.absent) - 1} more" if len(past.absent) > 1 else ""
            raise UsageError(f"--against {revision}: {name} {reason}{others}")
        yield past


def _past_variants(revision: str, names: list[str], found: Discovery, root: Path, folder: Path) -> PastVariants:
    variants, commits, absent = dict[str, Variant](), dict[str, Commit](), dict[str, str]()
    by_origin: dict[Origin | None, list[str]] = {}
    for name in names:
        origin = found.origins.get(name)
        # All modules of the sandbox's own variants come from one folder.
        key = Origin(MODULE, "", origin.package) if origin is not None and origin.kind == MODULE else origin
        by_origin.setdefault(key, []).append(name)
    for number, (origin, here) in enumerate(by_origin.items()):
        reason = _why_never_in_git(origin)
        if origin is None or reason is not None:
            absent |= dict.fromkeys(here, reason or "")
            continue
        then = folder / str(number)
        then.mkdir()
        commit, were, broken = _variants_of_origin(revision, origin, root, then)
        for name in here:
            if name in were:
                variants[name], commits[name] = were[name], commit
            else:
                absent[name] = _why_absent(found.origins[name], commit, broken)
    label = revision if _SHORT.fullmatch(revision) else next((commit.short for commit in commits.values()), revision)
    variants = {name: replace(variant, name=f"{name}@{label}") for name, variant in variants.items()}
    return PastVariants(label, variants, commits, absent)


def _why_never_in_git(origin: Origin | None) -> str | None:
    if origin is None:
        return "is an object of this process, and git stores only files"
    if origin.kind not in (MODULE, PLUGIN):
        return "belongs to an installed package, whose earlier versions are not in git; try --against kept"
    return None


def _variants_of_origin(
    revision: str, origin: Origin, root: Path, folder: Path
) -> tuple[Commit, dict[str, Variant], dict[str, str]]:
    """The commit, the variants by name, and the reasons for those that could not be loaded, by module or plugin."""
    if origin.kind == MODULE:
        commit = commit_of(repository_of(root), revision)
        try:
            extract(replace(commit, repository=root), [origin.package], folder)
        except NoSuchFile as error:
            return commit, {}, {"": str(error)}
        then = discover_isolated(package=origin.package, folder=folder)
        return commit, {variant.name: variant for variant in then.registry}, {b.name: b.reason for b in then.broken}
    path = Path(origin.name).resolve()
    commit = commit_of(repository_of(path), revision)
    within = path.relative_to(commit.repository.resolve())
    try:
        # With its neighbours, which it may import.
        extract(commit, [str(within.parent)] if within.parent != Path() else ["."], folder)
        if not (folder / within).exists():
            raise NoSuchFile(f"{within} did not exist at {commit.short}")
        then_there = variants_of(Origin(PLUGIN, str(folder / within)))
    except (NoSuchFile, PluginError) as error:
        return commit, {}, {origin.name: str(error)}
    return commit, {variant.name: variant for variant in then_there}, {}


def _why_absent(origin: Origin, commit: Commit, broken: Mapping[str, str]) -> str:
    reason = broken.get(origin.name, broken.get(""))
    if reason is not None and "did not exist at" not in reason:
        return f"cannot be loaded as of {commit.short}: {reason}"
    return f"did not exist at {commit.short} ({commit.date})"
