"""What hostile variants do while they plan, to have a wrong answer called right, or to do harm."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import pickle
import resource
import signal
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

UNWRITTEN = "never written"
DIED = "the process that ran it"
MARK = os.environ.get("HOSTILE_MARK", "/nonexistent/mark")
"""A file that only code which runs in the judge would write; and a folder beside it that attacks may spoil."""
STRAY = f"stray of {MARK}"
"""What a process that an attack has left behind is called, by which only its own test knows it."""
NAN = float("nan")
ESCAPES = "\x1b[31m\x1b]0;title\x07\u202egnp\u200b\x9b2J\ud800"
Deed = Callable[[], object]
_killed: list[int] = []


# What is replaced in the process.


def replaces_numpy() -> None:
    for name in ("abs", "isnan", "max", "allclose", "array_equal", "subtract"):
        setattr(np, name, lambda *args, **rest: np.float64(0))


def replaces_judging() -> None:
    import harness.execution.comparison as comparison
    import harness.execution.judging.accuracy as accuracy
    import harness.execution.judging.question as question

    for module in (accuracy, question, comparison):
        for name in [n for n, thing in vars(module).items() if callable(thing) and n[0].islower()]:
            setattr(module, name, lambda *args, **rest: None)


def replaces_verdicts() -> None:
    import harness.execution.judging.verdict as verdict

    for name in ("FAIL", "ERROR"):
        setattr(verdict, name, "pass")


def replaces_clocks() -> None:
    for name in ("time", "monotonic", "perf_counter", "process_time"):
        setattr(time, name, lambda: 0.0)


def replaces_wire() -> None:
    """A plan in the judge's own words: outputs that are inputs."""
    import harness.execution.isolation.planner as planner

    forged = {"buffers": [["Q", [1], "float32"]], "launches": [], "copies": []}
    planner.plan_to_json = lambda *args: forged


def replaces_buffers_by_anything() -> None:
    import harness.execution.isolation.planner as planner

    forged = {"buffers": [["O", 7], [{}, "x", [], NAN, 1]], "launches": [], "copies": [["O", {}], 7]}
    planner.plan_to_json = lambda *args: forged


def replaces_messages_by_nesting() -> None:
    import harness.execution.isolation.planner as planner

    planner.message_of = lambda said: b'{"number": %d, "answer": ' % said["number"] + b"[" * 200000


def replaces_messages_by_verdicts() -> None:
    import harness.execution.isolation.planner as planner

    forged = {"answer": None, "verdict": "pass", "rank": 1, "reason": None}
    planner.message_of = lambda said: json.dumps({**forged, "number": said["number"]}).encode()


def replaces_error_kinds() -> None:
    """A usage error would end the whole command."""
    import harness.execution.isolation.planner as planner

    forged = {"error": {"kind": "UsageError", "text": "the call was wrong" + ESCAPES}}
    planner.message_of = lambda said: json.dumps({**forged, "number": said["number"]}).encode()


def replaces_numbers_by_nan() -> None:
    import harness.execution.isolation.planner as planner

    forged = {"answer": {"supports": {"answer": None}, "plan": {"answer": {"buffers": NAN, "launches": [NAN]}}}}
    planner.message_of = lambda said: json.dumps({**forged, "number": said["number"]}).encode()


def searches_objects() -> None:
    """What the judge has of its verdicts would be among these, were it in this process."""
    for thing in gc.get_objects():
        if type(thing).__name__ in ("Attempt", "Question", "Row", "Comparison", "Accuracy"):
            for name in ("verdict", "reason", "answer", "passed"):
                with contextlib.suppress(Exception):
                    object.__setattr__(thing, name, "pass")


def searches_frames() -> None:
    frame = sys._getframe()
    while frame is not None:
        for name in ("question", "oracle", "accuracy", "done", "execution"):
            if name in frame.f_locals:
                raise RuntimeError(f"{name} is in reach")
        frame = frame.f_back


def overwrites_strings() -> None:
    """The word `fail`, wherever it lies in this process."""
    import harness.execution.judging.verdict as verdict

    word = verdict.FAIL
    ctypes.memmove(id(word) + sys.getsizeof(word) - len(word) - 1, b"pass", 4)


# What is written to whom.


def sockets() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode) or (stat.S_ISFIFO(os.fstat(int(name)).st_mode)):
                found.append(int(name))
    return found


def send(message: bytes, header: bytes | None = None) -> None:
    for descriptor in sockets():
        with contextlib.suppress(OSError):
            os.set_blocking(descriptor, False)
            os.write(descriptor, (struct.pack("!i", len(message)) if header is None else header) + message)
            os.set_blocking(descriptor, True)


def sends_answers() -> None:
    send(json.dumps({"answer": {"buffers": [], "launches": []}}).encode())
    send(json.dumps({"answer": None}).encode())


def sends_answers_later() -> None:
    def later() -> None:
        for _ in range(50):
            time.sleep(0.01)
            send(json.dumps({"answer": [0, 0], "loading": ["plugin", ESCAPES]}).encode())

    threading.Thread(target=later, daemon=True).start()


def sends_pickles() -> None:
    class Executes:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {MARK}",)

    send(pickle.dumps(Executes()))


def sends_endless_messages() -> None:
    send(b"", struct.pack("!i", 2**31 - 1))


def sends_negative_lengths() -> None:
    send(b"", struct.pack("!iQ", -1, 2**63))


def closes_everything() -> None:
    os.closerange(0, 256)


def prints_without_end() -> None:
    for _ in range(100):
        os.write(1, b"\x1b[2J" * 50_000)
        os.write(2, b"endless " * 10_000)


# What becomes of the process, and of others.


def kills_its_group() -> None:
    os.killpg(0, signal.SIGKILL)


def kills_its_supervisor() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(5)


def stops_its_supervisor() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)


def leaves_daemons() -> None:
    """Forked twice, in sessions of their own, without descriptors, deaf to all signals but one."""
    for _ in range(4):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                os.closerange(0, 256)
                os.execvp("sleep", [STRAY, "86413"])
            os._exit(0)


def leaves_daemons_to_nobody() -> None:
    """Where the process that would adopt and end them is gone, too."""
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG: not to end with its parent
    leaves_daemons()
    if not _killed:  # whoever is the parent from then on is not meant
        _killed.append(os.getppid())
        os.kill(os.getppid(), signal.SIGKILL)


def forks_and_forks() -> None:
    """A bomb with an end: each process starts another."""
    for number in range(100):
        if os.fork():
            if number == 0:
                time.sleep(3600)
            os.execvp("sleep", [STRAY, "86413"])
        time.sleep(0.02)


def takes_all_memory() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit == resource.RLIM_INFINITY or limit > 2**32:
        raise RuntimeError("nothing holds it back, and others run here")
    taken = []
    while True:
        taken.append(bytearray(2**28))


def recurses() -> None:
    recurses()


def waits_for_input() -> None:
    if os.read(0, 1):
        raise RuntimeError("it is handed what the user types")


def opens_the_terminal() -> None:
    with open("/dev/tty", "w") as terminal:
        terminal.write(ESCAPES)


def sets_an_alarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    time.sleep(5)


def exits_from_a_handler() -> None:
    def handler(number: int, frame: object) -> None:
        send(b'{"answer": null}')
        os._exit(0)

    signal.signal(signal.SIGUSR1, handler)
    atexit.register(send, b'{"answer": {"buffers": [], "launches": []}}')
    os.kill(os.getpid(), signal.SIGUSR1)


def leaves_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(3600,), daemon=False).start()


def changes_the_environment() -> None:
    os.environ.clear()
    os.environ.update({"PATH": "/nonexistent", "ATTENTION_SANDBOX_KEEP": "nonsense", "PYTHONPATH": "/nonexistent"})
    os.chdir("/")


def spoils_the_cache() -> None:
    """Only where the test has put one."""
    for place, _, files in os.walk(os.environ.get("HOSTILE_CACHE", "/nonexistent")):
        for name in files:
            with open(os.path.join(place, name), "r+b") as file:
                file.write(b"\x00\xff" * 64)


def raises_what_cannot_be_shown() -> None:
    class Nasty(Exception):
        def __str__(self) -> str:
            return ESCAPES * 10_000 + "\n" * 1000

    raise Nasty


def raises_what_raises() -> None:
    class Worse(Exception):
        def __str__(self) -> str:
            raise SystemExit(0)

        __repr__ = __str__

    raise Worse


DEEDS: dict[Deed, str] = {
    replaces_numpy: f"{UNWRITTEN}|plan",
    replaces_judging: f"{UNWRITTEN}|too old to be compiled",
    replaces_verdicts: UNWRITTEN,
    replaces_clocks: UNWRITTEN,
    replaces_wire: "Q",
    replaces_buffers_by_anything: "did not return a valid plan",
    replaces_messages_by_nesting: DIED,
    replaces_messages_by_verdicts: "",
    replaces_error_kinds: "the call was wrong",
    replaces_numbers_by_nan: "nan.* is no ",
    searches_objects: UNWRITTEN,
    searches_frames: UNWRITTEN,
    overwrites_strings: f"{UNWRITTEN}|{DIED}",
    sends_answers: "",
    sends_answers_later: "",
    sends_pickles: DIED,
    sends_endless_messages: DIED,
    sends_negative_lengths: DIED,
    closes_everything: DIED,
    prints_without_end: UNWRITTEN,
    kills_its_group: "SIGKILL",
    kills_its_supervisor: "SIGKILL",
    stops_its_supervisor: UNWRITTEN,
    leaves_daemons: UNWRITTEN,
    forks_and_forks: f"no answer within|{UNWRITTEN}",  # by the last of them
    takes_all_memory: "MemoryError|no answer within",
    recurses: "RecursionError",
    waits_for_input: UNWRITTEN,
    opens_the_terminal: "No such device|/dev/tty",
    sets_an_alarm: "SIGALRM",
    exits_from_a_handler: "",
    leaves_a_thread: UNWRITTEN,
    changes_the_environment: UNWRITTEN,
    raises_what_cannot_be_shown: "Nasty: .* more characters",
    raises_what_raises: "Worse|SystemExit",
}
"""What an attack does while it plans; what the reason has to say."""
ALONE = (leaves_daemons_to_nobody, spoils_the_cache)
"""Deeds for tests of their own, which say what becomes of them."""


def attack_name(deed: Deed) -> str:
    return str(getattr(deed, "__name__", "")).replace("_", "-")
