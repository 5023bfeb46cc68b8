"""--watch: run a command again whenever a file changes that its result depends on, in this process, which stays warm.

Files are looked at by their `stat`, a few times a second: that works on every file system and for editors that put a
new file in the old one's place. Processes that hold the old modules are ended; fresh ones are forked from the server
that has the compilers loaded. What compilers made of unchanged text comes from the cache, and results of variants that
no changed file can reach are kept.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.execution.isolation.process import end_planners
from harness.model.discovery import MODULE, REPOSITORY_ROOT, Discovery
from harness.options.exit_status import FAILED, WRONG_CALL
from harness.options.standard_streams import clear_screen, complain, print_result
from harness.support.errors import PluginError, SandboxError, UsageError

POLL_SECONDS = 0.05
"""Between two looks. A file has to stay as it is for one of them before it is run: editors write in steps."""
KERNEL_SUFFIXES = (".cu", ".cuh", ".h", ".hpp", ".inl", ".ptx")
"""Of what a module's kernels may be read from, in its folder and the folders in it."""
_VARIANTS = str(REPOSITORY_ROOT / "variants") + os.sep
_ARRAY_FILE = re.compile(r"[^:,+=]+\.npy")

State = Mapping[str, tuple[int, int, int] | None]
"""File -> when it was changed, its size, its number; None where there is none."""


class KeptResults:
    """Results by variant that still hold, because nothing that they depend on has changed."""

    def __init__(self, is_watched: bool = False) -> None:
        self.is_watched = is_watched
        """Whether there may be further runs."""
        self.loaded_files: set[str] | None = None
        """Files that the last run has loaded; None where none has come so far."""
        self._kept: dict[str, tuple[bool, Any]] = {}

    def known(self, names: Iterable[str]) -> dict[str, Any]:
        """Of these variants, those that need not run again, with their results."""
        return {name: self._kept[name][1] for name in names if name in self._kept}

    def keep(self, found: Discovery, results: Mapping[str, Any]) -> None:
        """Results of variants, by name."""
        for name, result in results.items():
            origin = found.origins.get(name)
            self._kept[name] = origin is not None and origin.kind == MODULE, result

    def forget(self, changed: Iterable[str]) -> None:
        """What these files may have changed: all, or where none is of `variants/`, the plugins' results."""
        only_plugins = not any(path.startswith(_VARIANTS) or path.endswith(".npy") for path in changed)
        self._kept = {name: kept for name, kept in self._kept.items() if only_plugins and kept[0]}


def add_watch(parser: argparse.ArgumentParser) -> None:
    """--watch."""
    parser.add_argument_group("watch").add_argument(
        "--watch",
        action="store_true",
        help="run again whenever a file changes that the result depends on: plugins, what they import, their kernels' "
        "sources, variants/, arrays; Ctrl-C ends it",
    )


def watching(arguments: argparse.Namespace, run: Callable[[KeptResults], int], most_runs: int | None = None) -> int:
    """Run a command once, or with --watch again and again, until Ctrl-C; the exit status.

    `run` is called with the results that still hold. A mistake in a file is printed, and the next change waited for;
    one in the call is raised. `most_runs`: for tests.
    """
    kept = KeptResults(getattr(arguments, "watch", False))
    if not kept.is_watched:
        return run(kept)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # two saves within a second leave bytecode that looks fresh
    status, runs = 0, 0
    while True:
        before = state_of(watched_files(arguments, kept))
        try:
            status = run(kept)
            print_result("")
        except SandboxError as error:
            if kept.loaded_files is None and not isinstance(error, PluginError):
                raise  # the call is wrong, which no file will mend
            complain(str(error))
            status = WRONG_CALL if isinstance(error, UsageError) else FAILED
        finally:
            end_planners()
        runs += 1
        if runs == most_runs:
            return status
        # What the run has loaded is known by now; what changed meanwhile shows against `before`.
        files = watched_files(arguments, kept)
        before = {**state_of(files), **before}
        complain(f"watching {len(before)} files; Ctrl-C ends it")
        changed = wait_for_change(before)
        kept.forget(changed)
        if sys.stdout.isatty() and arguments.output is None:
            clear_screen()
        complain(f"{', '.join(sorted(map(_short, changed))[:3])} changed")


def watched_files(arguments: argparse.Namespace, kept: KeptResults) -> set[str]:
    """Files that the result depends on, as far as it is known: more of them once something was loaded."""
    files = {os.path.abspath(path) for path in arguments.plugin or ()}
    files |= kept.loaded_files or set()
    files |= kernel_sources_beside(files)
    texts = [value for value in vars(arguments).values() if isinstance(value, str)]
    files |= {os.path.abspath(found) for text in texts for found in _ARRAY_FILE.findall(text)}
    return files


def kernel_sources_beside(files: Iterable[str]) -> set[str]:
    """What kernels may be read from, in the folders of these files."""
    return {source for folder in {os.path.dirname(path) for path in files} for source in _kernel_sources(Path(folder))}


def _kernel_sources(folder: Path) -> set[str]:
    """In it, and in the folders in it."""
    found = set()
    for pattern in ("*", "*/*"):
        try:
            found |= {str(path) for path in folder.glob(pattern) if path.suffix in KERNEL_SUFFIXES}
        except (OSError, ValueError):
            continue
    return found


def state_of(files: Iterable[str]) -> dict[str, tuple[int, int, int] | None]:
    """How these files are now."""
    return {path: _stat(path) for path in files}


def _stat(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # a plugin may say that it is from anywhere
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def wait_for_change(before: State) -> set[str]:
    """Until a file is another, and has stayed as it is since the last look; those that are."""
    last: State = before
    while True:
        now = state_of(before)
        changed = {path for path in now if now[path] != before[path]}
        if changed and now == last and any(now[path] is not None for path in changed):
            return changed
        last = now
        time.sleep(POLL_SECONDS)


def _short(path: str) -> str:
    shown = os.path.relpath(path)
    return path if shown.startswith("..") else shown
