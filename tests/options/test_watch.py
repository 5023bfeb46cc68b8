"""--watch: what is looked at, what counts as a change, what is kept, and the loop around a command."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.model.discovery import MODULE, PLUGIN, REPOSITORY_ROOT, Discovery, Origin
from harness.model.variant import Registry
from harness.options import watch
from harness.options.watch import KeptResults, state_of, wait_for_change, watched_files, watching
from harness.support.errors import PluginError, UsageError

PLUGIN_TEXT = (REPOSITORY_ROOT / "tests" / "plugins" / "one_thread_per_row.py").read_text()
SECONDS = 60.0


def asked(*plugins: Path, **more: object) -> argparse.Namespace:
    return argparse.Namespace(watch=True, plugin=list(plugins), output=None, **more)


def meanwhile(change: Callable[[], object], seconds: float = 0.15) -> threading.Timer:
    timer = threading.Timer(seconds, change)
    timer.start()
    return timer


def test_a_file_that_is_replaced_or_written_to_has_changed(tmp_path: Path) -> None:
    file, other = tmp_path / "kernel.cu", tmp_path / "other.cu"
    file.write_text("a")
    other.write_text("b")
    before = state_of({str(file), str(other)})

    def replace() -> None:  # as editors do: a new file, of the same size, in the old one's place
        new = tmp_path / "new"
        new.write_text("c")
        os.utime(new, ns=(before[str(file)][0],) * 2)  # type: ignore[index]
        os.replace(new, file)

    meanwhile(replace)
    assert wait_for_change(before) == {str(file)}
    before = state_of(before)
    meanwhile(lambda: other.write_text("longer"))
    assert wait_for_change(before) == {str(other)}
    assert state_of({"no\0name"}) == {"no\0name": None}


def test_a_file_that_is_gone_for_a_moment_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plugin.py"
    file.write_text("a")
    before = state_of({str(file)})
    file.unlink()
    written = []
    meanwhile(lambda: written.append(file.write_text("b")), 0.4)
    assert wait_for_change(before) == {str(file)} and written
    # Half of it is no change yet: it has to stay as it is for a look.
    before = state_of({str(file)})
    looks: list[float] = []

    def write_more(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) < 5:
            file.write_text("b" * (1 + len(looks)))

    monkeypatch.setattr(watch.time, "sleep", write_more)
    wait_for_change(before)
    assert file.read_text() == "b" * 5 and len(looks) >= 5


def test_kernels_arrays_and_modules_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("plugin.py", "kernel.cu", "include/tile.cuh", "include/deep/er.cuh", "notes.txt", "mask.npy"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    arguments = asked(Path("plugin.py"), mask="causal+blocks:mask.npy,16x16")
    kept = KeptResults()
    kept.loaded_files = {"/somewhere/else.py"}
    found = {
        os.path.relpath(path) if path.startswith(str(tmp_path)) else path for path in watched_files(arguments, kept)
    }
    assert found == {"plugin.py", "kernel.cu", "include/tile.cuh", "mask.npy", "/somewhere/else.py"}


def test_results_are_kept_that_no_changed_file_can_reach() -> None:
    origins = {"fa2-cupy": Origin(MODULE, "attention.fa2", "variants"), "mine": Origin(PLUGIN, "mine.py")}
    found = Discovery(Registry(), (), origins)

    def known_after(*changed: str) -> dict[str, int]:
        kept = KeptResults()
        kept.keep(found, {"fa2-cupy": 1, "mine": 2, "of no origin": 3})
        assert kept.known(["mine", "new"]) == {"mine": 2}
        kept.forget(changed)
        return kept.known(["fa2-cupy", "mine", "of no origin"])

    assert known_after("/home/me/mine.py", "/home/me/kernel.cuh") == {"fa2-cupy": 1}
    assert known_after(str(REPOSITORY_ROOT / "variants" / "attention" / "fa2" / "kernel.cu")) == {}
    assert known_after("/home/me/mask.npy") == {}


def test_the_loop_tells_mistakes_and_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text("0")
    runs: list[str] = []

    def run(kept: KeptResults) -> int:
        runs.append(plugin.read_text())
        if len(runs) < 3:
            meanwhile(lambda: plugin.write_text(str(len(runs))))
        if runs[-1] == "1":
            raise PluginError("plugin plugin.py does not import")
        return len(runs)

    assert watching(asked(plugin), run, most_runs=3) == 3
    assert runs == ["0", "1", "2"]
    said = capsys.readouterr().err
    assert said.count("plugin.py changed") == 2 and said.count("watching 1 files; Ctrl-C ends it") == 2
    assert "harness: plugin plugin.py does not import\n" in said
    assert watching(argparse.Namespace(watch=False), lambda kept: 7) == 7
    with pytest.raises(UsageError, match="heads"):  # nothing was loaded, so no file is to blame
        watching(asked(plugin), wrong_call)
    with pytest.raises(KeyboardInterrupt):
        watching(asked(plugin), interrupt)


def wrong_call(kept: KeptResults) -> int:
    raise UsageError("heads is 0")


def interrupt(kept: KeptResults) -> int:
    raise KeyboardInterrupt


@pytest.mark.compiles
def test_compare_runs_again_with_the_new_file(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN_TEXT)
    command = [sys.executable, "-u", "-m", "harness", "compare", "--watch", "--plugin", str(plugin)]
    command += ["--variants", "one-thread-per-row,fa2-cupy", "--seq-len", "16", "--format", "csv"]
    with subprocess.Popen(
        command, cwd=REPOSITORY_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            first = said_until(process, "watching")
            assert ",pass," in row_of(first, "one-thread-per-row") and "\x1b" not in first
            time.sleep(0.05)
            plugin.write_text(PLUGIN_TEXT.replace("p = expf(s - m_new)", "p = 2 * expf(s - m_new)", 1))
            wrong = said_until(process, "watching")
            assert ",fail," in row_of(wrong, "one-thread-per-row")
            # What no change can reach is not run again, and stands there as it was but for its rank.
            assert row_of(wrong, "fa2-cupy").partition(",")[2] == row_of(first, "fa2-cupy").partition(",")[2]
            plugin.write_text("def register(registry:\n")
            assert "plugin.py:1: SyntaxError" in said_until(process, "watching")
            plugin.write_text(PLUGIN_TEXT)
            assert ",pass," in row_of(said_until(process, "watching"), "one-thread-per-row")
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 130


def said_until(process: subprocess.Popen[str], word: str) -> str:
    """All lines up to the first with that word."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if word in line:
            return "".join(lines)
    raise AssertionError(f"it ended: {''.join(lines)}")


def row_of(text: str, variant: str) -> str:
    return next(line for line in text.splitlines() if f",{variant}," in line)
