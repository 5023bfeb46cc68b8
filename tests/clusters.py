"""Clusters for tests: Dask's own programs started by hand, and who is left of the processes of a test."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = "ATTENTION_SANDBOX_TEST_RUN"
"""In the environment of all processes that belong to one test."""


class Processes:
    """Of one test, with all that they start, wherever that ends up."""

    def __init__(self, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment, MARK: self.mark}
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str, env: Mapping[str, str] | None = None, **rest: object) -> subprocess.Popen[str]:
        """A program of this Python: `-m harness fuzz ...`."""
        return self.run([sys.executable, *words], env=env, **rest)

    def run(self, words: Sequence[str], env: Mapping[str, str] | None = None, **rest: object) -> subprocess.Popen[str]:
        """Any program."""
        started = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**self.environment, **(env or {})}, **rest,  # type: ignore[call-overload]
        )  # fmt: skip
        self._started.append(started)
        return started

    def left(self, having: str = "") -> list[int]:
        """Those that are running, of whose command line `having` is a part."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                marked = f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes()
                if (
                    marked
                    and state != "Z"
                    and having.encode() in (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                ):
                    found.append(int(folder.name))
        return found

    def all_gone_within(self, seconds: float) -> bool:
        """Whether nothing of the test is running after that time at most."""
        until = time.monotonic() + seconds
        while self.left():
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def end(self) -> None:
        """End what is left."""
        for process in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for started in self._started:
            started.kill()
            started.communicate()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start_scheduler(processes: Processes, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> tuple[str, object]:
    """Its address, and its process."""
    port = free_port()
    words = ["-m", "distributed.cli.dask_scheduler", "--host", host, "--port", str(port), "--no-dashboard"]
    return f"tcp://{host}:{port}", processes.run([*prefix, sys.executable, *words])


def start_worker(
    processes: Processes, address: str, folder: Path, name: str, *words: str, prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:  # fmt: skip
    """One, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    command = [
        "-m",
        "distributed.cli.dask_worker",
        address,
        "--nthreads",
        "1",
        "--no-dashboard",
        "--name",
        name,
        *words,
    ]
    return processes.run([*prefix, sys.executable, *command], env=env, cwd=folder)


@contextlib.contextmanager
def processes(**environment: str) -> Iterator[Processes]:
    """Those of one test; none is left."""
    own = Processes(**environment)
    try:
        yield own
    finally:
        own.end()
