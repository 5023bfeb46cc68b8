"""PTX -> a kernel that can be launched: from this process, from the disk cache, or built now."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass

from harness.emulator.codegen.kernel_facts import KernelFacts
from harness.emulator.instruments import PLAIN, Instruments
from harness.emulator.native.compile_worker import THIS_PROCESS, Compiler
from harness.emulator.native.kernel_build import BuiltKernel
from harness.emulator.native.llvm_compiler import host_key
from harness.emulator.native.object_loading import load_part, native_address
from harness.emulator.native.source_key import source_hash
from harness.emulator.native.tier import Tier
from harness.support.cache import Key, default_cache

_KIND = "kernel"
"""Of entries in the cache."""


@dataclass(frozen=True)
class NativeKernel:
    """A kernel in this process's memory."""

    facts: KernelFacts
    address: int
    """Of the native function that runs one warp."""
    instruments: Instruments
    """What is built into it."""


# By the whole text: whoever launches a kernel often hands over the same string, and its hash is kept by Python.
_loaded: dict[tuple[str, str, Instruments, Tier], NativeKernel] = {}
_lock = threading.Lock()


def native_kernel(
    ptx: str,
    entry: str,
    compiler: Compiler = THIS_PROCESS,
    instruments: Instruments = PLAIN,
    tier: Tier = Tier.OPTIMIZED,
) -> NativeKernel:
    """One entry of a PTX module as native code, by way of `compiler`. Several threads may ask at once.

    Who asks for the baseline gets optimized code where that is there already, and who asks for optimized code of a very
    long text gets the baseline.

    Raises `CompileError` where the PTX is broken, `UnsupportedInstruction` where it holds what we do not emulate.
    """
    key = (ptx, entry, instruments, tier)
    kernel = _loaded.get(key)
    if kernel is not None:
        return kernel
    affordable = tier.of(ptx)
    if affordable is not tier:
        kernel = native_kernel(ptx, entry, compiler, instruments, affordable)
    else:
        built = BuiltKernel.from_bytes(_built(ptx, entry, compiler, instruments, tier))
        for part in ("core", *built.parts):
            load_part(part, compiler.build_part)
        kernel = NativeKernel(built.facts, native_address(built.symbol, built.native), instruments)
    with _lock:
        return _loaded.setdefault(key, kernel)


def _built(ptx: str, entry: str, compiler: Compiler, instruments: Instruments, tier: Tier) -> bytes:
    """A `BuiltKernel` in bytes."""
    identity = hashlib.sha256(f"{entry}\0{instruments}\0{ptx}".encode()).hexdigest()

    def key(tier: Tier) -> Key:
        return identity, tier.value, source_hash(), *host_key()

    cache = default_cache()
    if tier is Tier.BASELINE:
        optimized = cache.get(_KIND, key(Tier.OPTIMIZED))
        if optimized is not None:
            return optimized
    return cache.cached(_KIND, key(tier), lambda: compiler.build_kernel(ptx, entry, instruments, tier))
