"""A plugin that tries every way into the memory and the descriptors of the processes above it, and says which are open.

Its answers are wrong: a verdict other than `error` or `fail` would have been written by the plugin itself.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from harness import Plan, Problem, Variant

PTRACE_ATTACH, PTRACE_DETACH = 16, 17
PIDFD_OPEN, PIDFD_GETFD = 434, 438
OPENS_MEMORY = "import sys; open(f'/proc/{sys.argv[1]}/mem', 'r+b')"
libc = ctypes.CDLL(None, use_errno=True)


def ancestors() -> Iterator[int]:
    """The server, the judge, and whatever started that."""
    pid = os.getppid()
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def checked(returned: int) -> int:
    if returned < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return returned


def memory_file(pid: int) -> None:
    open(f"/proc/{pid}/mem", "r+b").close()


def memory_map(pid: int) -> None:
    Path(f"/proc/{pid}/maps").read_text()


def vector_write(pid: int) -> None:
    """One byte to address 0, which is never mapped: EFAULT, where it is allowed at all."""
    byte = ctypes.create_string_buffer(1)
    here, there = (ctypes.c_void_p * 2)(ctypes.addressof(byte), 1), (ctypes.c_void_p * 2)(0, 1)
    if libc.process_vm_writev(pid, here, 1, there, 1, 0) < 0 and ctypes.get_errno() != 14:
        raise OSError(ctypes.get_errno(), "refused")


def trace(pid: int) -> None:
    checked(libc.ptrace(PTRACE_ATTACH, pid, None, None))
    os.waitpid(pid, 0)
    libc.ptrace(PTRACE_DETACH, pid, None, None)


def descriptors(pid: int) -> None:
    open(f"/proc/{pid}/fd/2", "ab").close()


def copied_descriptor(pid: int) -> None:
    checked(libc.syscall(PIDFD_GETFD, checked(libc.syscall(PIDFD_OPEN, pid, 0)), 1, 0))


def from_a_program(pid: int) -> None:
    """What is executed might have gained the privileges that this process lost."""
    done = subprocess.run([sys.executable, "-c", OPENS_MEMORY, str(pid)], capture_output=True)
    if done.returncode:
        raise OSError(done.stderr.decode().splitlines()[-1])


def from_a_new_process(pid: int) -> None:
    """The server forks whoever asks it to: that process has to be as powerless as this one."""
    import multiprocessing

    process = multiprocessing.get_context("forkserver").Process(target=memory_file, args=(pid,))
    process._config["daemon"] = False
    multiprocessing.current_process()._config["daemon"] = False
    process.start()
    process.join(20)
    if process.exitcode != 0:
        raise OSError("refused")


WAYS: tuple[Callable[[int], None], ...] = (
    memory_file, memory_map, vector_write, trace, descriptors, copied_descriptor, from_a_program, from_a_new_process,
)  # fmt: skip


def open_ways() -> list[str]:
    found = []
    server, judge, *_ = ancestors()
    for name, pid in (("server", server), ("judge", judge)):
        for way in WAYS:
            with contextlib.suppress(OSError):
                way(pid)
                found.append(f"{way.__name__} of the {name}")
    return found


def plan(problem: Problem) -> Plan:
    raise RuntimeError(f"open: {', '.join(open_ways()) or 'none'}")


def listing(problem: Problem) -> Plan:
    names = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    raise RuntimeError(f"descriptors: {names}")


def register(registry):
    registry.add(Variant(name="reaches", plan=plan))
    registry.add(Variant(name="lists", plan=listing))
