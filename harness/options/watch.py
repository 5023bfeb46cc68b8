"""Implements --watch: runs a command again, in this process, when a file changes on which its result depends.

Files are checked with `stat` several times a second, which works on every file system and with editors that replace the
file. Processes with the old modules are ended, and new ones are forked from the server, which has the compilers loaded.
Compiled code of unchanged sources comes from the cache. Results of variants that do not depend on a changed file are
reused.
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
"""Interval in seconds between two checks. A file must be unchanged for one interval, because editors write in steps."""
KERNEL_SUFFIXES = (".cu", ".cuh", ".h", ".hpp", ".inl", ".ptx")
"""Suffixes of files that may contain a module's kernels, in its folder and that folder's subfolders."""
_VARIANTS = str(REPOSITORY_ROOT / "variants") + os.sep
_ARRAY_FILE = re.compile(r"[^:,+=]+\.npy")

State = Mapping[str, tuple[int, int, int] | None]
"""Modification time in ns, size in bytes and inode number of each file; None if the file does not exist."""


class KeptResults:
    """Results by variant that are still valid, because nothing they depend on has changed."""

    def __init__(self, is_watched: bool = False) -> None:
        self.is_watched = is_watched
        """Whether the command may run again."""
        self.loaded_files: set[str] | None = None
        """Files that the last run loaded; None if no run loaded any."""
        self._kept: dict[str, tuple[bool, Any]] = {}

    def known(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the valid results of these variants, by name."""
        return {name: self._kept[name][1] for name in names if name in self._kept}

    def keep(self, found: Discovery, results: Mapping[str, Any]) -> None:
        """Store results of variants, by name."""
        for name, result in results.items():
            origin = found.origins.get(name)
            self._kept[name] = origin is not None and origin.kind == MODULE, result

    def forget(self, changed: Iterable[str]) -> None:
        """Drop the results that changes to these files may affect.

        Drops those of plugins, and also all others if a file of `variants/` or an array file has changed.
        """
        only_plugins = not any(path.startswith(_VARIANTS) or path.endswith(".npy") for path in changed)
        self._kept = {name: kept for name, kept in self._kept.items() if only_plugins and kept[0]}


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Add --watch."""
    parser.add_argument_group("watch").add_argument(
        "--watch",
        action="store_true",
        help="run again when a file that the result depends on changes: plugins, the modules that they import, kernel "
        "sources, variants/, array files; press Ctrl-C to stop",
    )


def watching(arguments: argparse.Namespace, run: Callable[[KeptResults], int], most_runs: int | None = None) -> int:
    """Run a command once, or with --watch repeatedly until Ctrl-C. Returns the exit status.

    `run` is called with the results that are still valid. An error in a file is printed, and the next change is
    awaited; an error in the options is raised. `most_runs` limits the number of runs, for tests.
    """
    kept = KeptResults(getattr(arguments, "watch", False))
    if not kept.is_watched:
        return run(kept)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # bytecode is not invalidated by a second change within one second
    status, runs = 0, 0
    while True:
        before = state_of(watched_files(arguments, kept))
        try:
            status = run(kept)
            print_result("")
        except SandboxError as error:
            if kept.loaded_files is None and not isinstance(error, PluginError):
                raise  # an error in the options, which a change of a file cannot fix
            complain(str(error))
            status = WRONG_CALL if isinstance(error, UsageError) else FAILED
        finally:
            end_planners()
        runs += 1
        if runs == most_runs:
            return status
        # The run has determined which files it loads. Changes made during it are detected by comparison with `before`.
        files = watched_files(arguments, kept)
        before = {**state_of(files), **before}
        complain(f"watching {len(before)} files; Ctrl-C ends it")
        changed = wait_for_change(before)
        kept.forget(changed)
        if sys.stdout.isatty() and arguments.output is None:
            clear_screen()
        complain(f"{', '.join(sorted(map(_short, changed))[:3])} changed")


def watched_files(arguments: argparse.Namespace, kept: KeptResults) -> set[str]:
    """Return the files that the result is known to depend on. The set grows when a run has loaded more files."""
    files = {os.path.abspath(path) for path in arguments.plugin or ()}
    files |= kept.loaded_files or set()
    files |= kernel_sources_beside(files)
    texts = [value for value in vars(arguments).values() if isinstance(value, str)]
    files |= {os.path.abspath(found) for text in texts for found in _ARRAY_FILE.findall(text)}
    return files


def kernel_sources_beside(files: Iterable[str]) -> set[str]:
    """Return files in the folders of these files, and in their subfolders, that may contain kernels."""
    return {source for folder in {os.path.dirname(path) for path in files} for source in _kernel_sources(Path(folder))}


def _kernel_sources(folder: Path) -> set[str]:
    """Return the kernel sources in a folder and its subfolders."""
    found = set()
    for pattern in ("*", "*/*"):
        try:
            found |= {str(path) for path in folder.glob(pattern) if path.suffix in KERNEL_SUFFIXES}
        except (OSError, ValueError):
            continue
    return found


def state_of(files: Iterable[str]) -> dict[str, tuple[int, int, int] | None]:
    """Return the current state of these files."""
    return {path: _stat(path) for path in files}


def _stat(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # the path of a plugin's source may be invalid
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def wait_for_change(before: State) -> set[str]:
    """Wait until a file has changed and was then unchanged for one interval. Returns the changed files."""
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
