"""A process, and whatever it has started, is ended as a whole."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from harness.support.processes.process_tree import descendants_of, end_tree, tree_seconds

PARENT = """
import os, time
from harness.support.processes.process_tree import adopt_orphans
adopt_orphans()
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:  # whose parent ends at once
            os.closerange(0, 100)
            until = time.process_time() + 0.25
            while time.process_time() < until:
                pass
            time.sleep(3600)
        os._exit(0)
while True:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
    time.sleep(0.01)
"""
WAIT_SECONDS = 60.0


def test_orphans_of_a_process_that_adopts_them_end_with_it():
    process = subprocess.Popen([sys.executable, "-c", PARENT])
    try:
        until = time.monotonic() + WAIT_SECONDS
        while (len(descendants_of(process.pid)) < 5 or tree_seconds(process.pid) < 1) and time.monotonic() < until:
            time.sleep(0.1)
        orphans = descendants_of(process.pid)
        assert len(orphans) == 5 and tree_seconds(process.pid) >= 1  # each has used 0.25 s
    finally:
        end_tree(process.pid)
    assert process.wait(WAIT_SECONDS) == -9
    until = time.monotonic() + WAIT_SECONDS
    while any(map(runs, orphans)) and time.monotonic() < until:
        time.sleep(0.02)  # whoever adopts them now has to wait for them
    assert not any(map(runs, orphans))


def runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_without_children_has_none():
    assert descendants_of(os.getpid()) == [] or os.getpid() not in descendants_of(os.getpid())
    assert descendants_of(2**30) == [] and tree_seconds(2**30) == 0
