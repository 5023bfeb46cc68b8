"""PTX -> a kernel that can be launched: from this process, from the disk cache, or built now."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass

from harness.emulator.codegen.kernel_facts import KernelFacts
from harness.emulator.instruments import PLAIN, Instruments
from harness.emulator.native.compile_worker import THIS_PROCESS, Compiler
from harness.emulator.native.kernel_build import split_kernel
from harness.emulator.native.llvm_compiler import host_key
from harness.emulator.native.object_loading import load_copies, load_runtime, native_address
from harness.emulator.native.source_key import source_hash
from harness.support.cache import default_cache


@dataclass(frozen=True)
class NativeKernel:
    """A kernel in this process's memory."""

    facts: KernelFacts
    address: int
    """Of the native function that runs one warp."""
    instruments: Instruments
    """What is built into it."""


# By the whole text: whoever launches a kernel often hands over the same string, and its hash is kept by Python.
_loaded: dict[tuple[str, str, Instruments], NativeKernel] = {}
_lock = threading.Lock()


def native_kernel(
    ptx: str, entry: str, compiler: Compiler = THIS_PROCESS, instruments: Instruments = PLAIN
) -> NativeKernel:
    """One entry of a PTX module as native code, by way of `compiler`. Several threads may ask at once.

    Raises `CompileError` where the PTX is broken, `UnsupportedInstruction` where it holds what we do not emulate.
    """
    kernel = _loaded.get((ptx, entry, instruments))
    if kernel is None:
        identity = hashlib.sha256(f"{entry}\0{instruments}\0{ptx}".encode()).hexdigest()
        key = (identity, source_hash(), *host_key())
        payload = default_cache().cached("kernel", key, lambda: compiler.build_kernel(ptx, entry, instruments))
        facts, native = split_kernel(payload)
        load_runtime(compiler.build_runtime)
        if facts.copies:
            load_copies()
        address = native_address(facts.symbol, native)
        with _lock:
            kernel = _loaded.setdefault((ptx, entry, instruments), NativeKernel(facts, address, instruments))
    return kernel
