"""One server forks for all: for this process, and for those that it has forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from harness.execution.isolation.server import Surroundings, begin_server

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 30.0
UNKNOWN = 255
"""How a process ended that has lost its server, which alone could tell."""
VARIABLE = "WHAT_THE_SERVER_HAS_NOT_HEARD_OF"


def tell_parents(connection: Connection, surroundings: Surroundings, depth: int) -> None:
    """Who forked this process, and those that it starts."""
    surroundings.take_on()
    connection.send((os.getppid(), os.environ.get(VARIABLE), os.getcwd()))
    if depth:
        start(tell_parents, connection, depth - 1)


def outlive_server(connection: Connection, surroundings: Surroundings, depth: int) -> None:
    """End the server, then start a process."""
    surroundings.take_on()
    server = os.getppid()
    os.kill(server, signal.SIGKILL)
    until = time.monotonic() + SECONDS
    while os.getppid() == server and time.monotonic() < until:
        time.sleep(0.01)
    start(tell_parents, connection, depth - 1)


def start(function: object, connection: Connection, depth: int) -> int | None:
    """How it ended."""
    process = begin_server().Process(target=function, args=(connection, Surroundings.of_this_process(), depth))
    process.start()
    process.join(SECONDS)
    return process.exitcode


def told(function: object, depth: int, answers: int) -> list[tuple[int, str | None, str]]:
    ours, theirs = begin_server().Pipe()
    assert start(function, theirs, depth) in (0, UNKNOWN)
    said = []
    while len(said) < answers and ours.poll(SECONDS):
        said.append(ours.recv())
    return said


def test_processes_of_a_process_are_forked_from_the_server_that_forked_it():
    said = told(tell_parents, 2, 3)
    assert len(said) == 3
    assert {parent for parent, _, _ in said} == {forkserver._forkserver._forkserver_pid}  # type: ignore[attr-defined]


def test_each_has_the_surroundings_of_who_started_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    begin_server()
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.chdir(tmp_path)
    assert [said[1:] for said in told(tell_parents, 1, 2)] == [("1", str(tmp_path))] * 2


def test_who_has_lost_the_server_starts_another():
    said = told(outlive_server, 1, 1)
    assert len(said) == 1
    assert len(told(tell_parents, 0, 1)) == 1  # and this process does, too


def test_what_the_server_cannot_import_ahead_is_one_line(tmp_path: Path):
    (tmp_path / "broken_ahead.py").write_text("raise RuntimeError('a driver\\nis missing')")
    program = (
        "import os; from harness.execution.isolation.server import begin_server, preload;"
        "preload('not_installed.at_all', 'broken_ahead');"
        "processes = [begin_server().Process(target=os.getcwd) for _ in range(2)];"
        "[(each.start(), each.join()) for each in processes];"
        "assert [each.exitcode for each in processes] == [0, 0]"
    )
    paths = os.pathsep.join([str(ROOT), str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": paths}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    said = (
        "harness: the fork server cannot import broken_ahead, so each process has to: RuntimeError: a driver is missing"
    )
    assert ended.stderr == said + "\n"


def test_the_name_of_a_temporary_folder_may_be_long(tmp_path: Path):
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    program = (
        "import os, tempfile; from harness.execution.isolation.server import begin_server;"
        "process = begin_server().Process(target=os.getcwd); process.start(); process.join();"
        "assert process.exitcode == 0; print(tempfile.gettempdir())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{folder}\n"
