"""One mutated PTX text after the other: refused in words that name a line, or code that ends in an answer or a fault.

Anything else is a bug of the emulator: another exception, IR that LLVM refuses, a text that takes long, and above all
native code that takes the process down. What is launched runs in a process of its own, so that this can be told.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm
from mutated_ptx import mutated

from harness import PtxKernel
from harness.compilers import CompiledKernel, compile_kernel
from harness.emulator.abi import layout as at
from harness.emulator.codegen.kernel import generate
from harness.emulator.instruments import PLAIN, Instruments
from harness.emulator.launch.configuration import Geometry, LaunchOptions
from harness.emulator.launch.kernel_launch import launch
from harness.emulator.launch.memory.aligned_memory import aligned_zeros
from harness.emulator.launch.memory.device_memory import DeviceBuffer
from harness.emulator.native.compile_worker import THIS_PROCESS
from harness.emulator.native.kernel_cache import native_kernel
from harness.emulator.native.object_loading import load_runtime
from harness.ptx.parsing.parser import parse
from harness.support.errors import CompileError, KernelFault, PlanError, UnsupportedInstruction

MOST_SECONDS = 10
"""Of the processor's time, for reading one text, and for compiling and running it."""
_STEP_LIMIT = 20_000
_REFUSALS = (CompileError, UnsupportedInstruction)
_NO_LINE = ("its PTX has no .target", "the PTX defines ", "its text is ")
"""Beginnings of what is said of a whole text, in which something is missing."""


@dataclass(frozen=True)
class Examined:
    """What became of one text."""

    seed: int
    text: str
    outcome: str
    """`refused`, `accepted`, `ran`, `faulted`; else what went wrong."""

    @property
    def is_bug(self) -> bool:
        """Whether the emulator, and not the text, is wrong."""
        return self.outcome not in ("refused", "accepted", "ran", "faulted")


def examine(seed: int, originals: Sequence[tuple[str, str]], launched: bool) -> Examined:
    """One of the `originals`, each a text and its entry, mutated by `seed`; run, too, where it is to be `launched`."""
    rng = random.Random(seed)
    original, entry = rng.choice(originals)
    text = mutated(original, rng)
    began = time.process_time()
    try:
        compiled = compile_kernel(PtxKernel(text, entry), (), "sm_90")
        llvm.parse_assembly(generate(parse(compiled.ptx), entry).ir_as("warp")).verify()
    except (*_REFUSALS, PlanError) as error:
        outcome = "refused" if _names_a_line(str(error)) else f"a refusal without a line: {error}"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    else:
        outcome = _outcome_of_run(compiled, sanitized=seed % 3 == 0) if launched else "accepted"
    seconds = time.process_time() - began
    return Examined(seed, text, f"it took {seconds:.0f} s" if seconds > MOST_SECONDS else outcome)


def _names_a_line(message: str) -> bool:
    return "PTX line " in message or any(words in message for words in _NO_LINE)


_OUTCOMES = ("ran", "faulted", "an exception at run time")


def _outcome_of_run(compiled: CompiledKernel, sanitized: bool) -> str:
    load_runtime()
    child = os.fork()
    if not child:
        status = 2
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30 * MOST_SECONDS)  # for what waits and does not work
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # then a launch needs no thread
            status = _run(compiled, Instruments(sanitizer=True) if sanitized else PLAIN)
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return _OUTCOMES[os.WEXITSTATUS(status)]


def _run(compiled: CompiledKernel, instruments: Instruments) -> int:
    """Two blocks of two warps, on four buffers of zeros, every number 4; the index of what became of it."""
    buffers = [DeviceBuffer(f"buffer {number}", aligned_zeros(4096)[:4096]) for number in range(4)]
    try:
        kernel = native_kernel(compiled.ptx, compiled.entry, THIS_PROCESS, instruments)
        sizes = [parameter.size_bytes for parameter in kernel.facts.parameters]
        values = [
            at.buffer_address(number % 4).to_bytes(8, "little") if size == 8 else b"\4" + bytes(size)[1:]
            for number, size in enumerate(sizes)
        ]
        options = LaunchOptions(_STEP_LIMIT, 1, 0)
        launch(kernel, compiled.name, Geometry((2, 1, 1), (64, 1, 1), 1024), values, buffers, options)
    except (*_REFUSALS, PlanError, KernelFault):
        return 1
    return 0
