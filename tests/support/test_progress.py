from __future__ import annotations

import sys
import time

import pytest

import harness.support.progress
from harness.support.progress import in_notebook, progress_bar


class Stderr:
    """Collects what is written; says that it is a terminal, or not."""

    encoding = "utf-8"

    def __init__(self, terminal: bool) -> None:
        self.text = ""
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def written(monkeypatch: pytest.MonkeyPatch, terminal: bool, delay: float, takes: float, progress: str = "") -> str:
    stderr = Stderr(terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("ATTENTION_SANDBOX_PROGRESS", progress)
    monkeypatch.setattr(harness.support.progress, "DELAY_SECONDS", delay)
    monkeypatch.setattr(harness.support.progress, "LINE_DELAY_SECONDS", delay)
    with progress_bar(2) as bar:
        bar.step("the oracle")
        deadline = time.monotonic() + takes
        while time.monotonic() < deadline and "the oracle" not in stderr.text:
            time.sleep(0.01)
        bar.step("fa2-cupy")
        bar.part(0.5)
    return stderr.text


def test_it_appears_on_a_terminal_when_it_takes_long_and_is_wiped_out(monkeypatch: pytest.MonkeyPatch):
    text = written(monkeypatch, terminal=True, delay=0.05, takes=10)
    assert "the oracle" in text
    assert "fa2-cupy" in text
    assert "75 %" in text
    assert text.rsplit("\r", 2)[1].strip() == ""


def test_it_does_not_appear_for_what_is_quick(monkeypatch: pytest.MonkeyPatch):
    assert written(monkeypatch, terminal=True, delay=60, takes=0.1) == ""


def test_a_pipe_gets_one_line_when_it_takes_long(monkeypatch: pytest.MonkeyPatch):
    text = written(monkeypatch, terminal=False, delay=0.05, takes=10)
    assert text.startswith("harness: 1 of 2: the oracle; ") and text.count("\n") == 1


def test_it_can_be_left_out(monkeypatch: pytest.MonkeyPatch):
    assert written(monkeypatch, terminal=False, delay=0.01, takes=0.2, progress="off") == ""


def test_a_pipe_gets_nothing_for_what_is_quick(monkeypatch: pytest.MonkeyPatch):
    assert written(monkeypatch, terminal=False, delay=60, takes=0.1) == ""


def test_a_notebook_has_a_bar_though_its_stderr_is_no_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(harness.support.progress, "in_notebook", lambda: True)
    text = written(monkeypatch, terminal=False, delay=0.05, takes=10)
    assert "fa2-cupy" in text and "75 %" in text


def test_a_kernel_is_known_by_its_application(monkeypatch: pytest.MonkeyPatch):
    import IPython

    class Shell:
        def __init__(self, *applications: str) -> None:
            self.config = {name: {} for name in applications}

    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    for shell, expected in ((Shell("IPKernelApp"), True), (Shell("TerminalIPythonApp"), False), (None, False)):
        monkeypatch.setattr(IPython, "get_ipython", lambda shell=shell: shell)
        assert in_notebook() is expected


def lines_of_a_pipe(monkeypatch: pytest.MonkeyPatch, done: float) -> str:
    """What a pipe gets if, after 60 seconds, this many of four steps are done."""
    stderr = Stderr(terminal=False)
    now = [0.0]
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(harness.support.progress.time, "monotonic", lambda: now[0])
    progress = harness.support.progress.Progress(4)
    progress.step("the oracle")
    progress.part(done)
    now[0] = 60.0
    progress.tell()
    return stderr.text


def test_the_line_says_how_long_the_rest_takes(monkeypatch: pytest.MonkeyPatch):
    assert lines_of_a_pipe(monkeypatch, done=1) == "harness: 1 of 4: the oracle; about 3 minutes left\n"
    assert lines_of_a_pipe(monkeypatch, done=3) == "harness: 1 of 4: the oracle; about 20 seconds left\n"


def test_the_line_names_compilation_before_anything_is_done(monkeypatch: pytest.MonkeyPatch):
    expected = "harness: 1 of 4: the oracle; a first run compiles kernels, which can take a minute\n"
    assert lines_of_a_pipe(monkeypatch, done=0) == expected


def test_the_bar_says_how_long_the_rest_takes(monkeypatch: pytest.MonkeyPatch):
    assert " left" in written(monkeypatch, terminal=True, delay=0.05, takes=10)
