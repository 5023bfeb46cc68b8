"""Ctrl-C ends a wait of the main thread that the signal alone does not end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.model.discovery import REPOSITORY_ROOT

pytestmark = pytest.mark.compiles(False)

WAITING = """
import signal, threading, time
from harness.support.processes.interrupts import heed_interrupts

heed_interrupts()
interrupted = 0
for _ in range(2):
    lock = threading.Lock()
    lock.acquire()

    def interrupt():
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # handled in the main thread, which does not notice
        time.sleep(30)
        lock.release()

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        lock.acquire()
    except KeyboardInterrupt:
        interrupted += 1
print(interrupted)
"""

DROPPED = """
import os, signal, time
from harness.support.processes.interrupts import heed_interrupts

class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)

class Broken:
    def __del__(self):
        raise ValueError("told as ever")

heed_interrupts()
Broken()
try:
    Interrupted()
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted")
"""


def run(program: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY_ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout, done.stderr


def test_an_interrupt_that_another_thread_was_given_ends_a_wait_for_a_lock():
    assert run(WAITING) == ("2\n", "")


def test_an_interrupt_that_python_drops_is_raised_behind_that_and_not_told():
    out, err = run(DROPPED)
    assert out == "interrupted\n"
    assert "told as ever" in err and "KeyboardInterrupt" not in err
