"""Ctrl-C ends a wait of the main thread that the signal alone does not end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.model.discovery import REPOSITORY_ROOT

pytestmark = pytest.mark.compiles(False)

WAITING = """
import signal, threading, time
from harness.support.interrupts import heed_interrupts

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


def test_an_interrupt_that_another_thread_was_given_ends_a_wait_for_a_lock():
    done = subprocess.run(
        [sys.executable, "-c", WAITING], cwd=REPOSITORY_ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("2\n", "")
