"""Provides native kernels for PTX: from this process, from the disk cache, or newly built."""

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
"""Kind of these entries in the disk cache."""


@dataclass(frozen=True)
class NativeKernel:
    """A kernel that is loaded into this process."""

    facts: KernelFacts
    address: int
    """Address of the native function that executes one warp."""
    instruments: Instruments
    """Instruments that are compiled into the kernel."""


# The key contains the whole PTX. Repeated launches usually pass the same string object, whose hash Python caches.
_loaded: dict[tuple[str, str, Instruments, Tier], NativeKernel] = {}
_lock = threading.Lock()


def native_kernel(
    ptx: str,
    entry: str,
    compiler: Compiler = THIS_PROCESS,
    instruments: Instruments = PLAIN,
    tier: Tier = Tier.OPTIMIZED,
) -> NativeKernel:
    """Return one entry of a PTX module as native code, built with `compiler` if necessary. Thread-safe.

    A request for baseline code returns optimized code if that is already available. A request for optimized code of a
    very long text returns baseline code.

    Raises `CompileError` for invalid PTX, and `UnsupportedInstruction` for instructions that are not emulated.
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
    """Return an encoded `BuiltKernel` from the disk cache, or build it."""
    identity = hashlib.sha256(f"{entry}\0{instruments}\0{ptx}".encode()).hexdigest()

    def key(tier: Tier) -> Key:
        return identity, tier.value, source_hash(), *host_key()

    cache = default_cache()
    if tier is Tier.BASELINE:
        optimized = cache.get(_KIND, key(Tier.OPTIMIZED))
        if optimized is not None:
            return optimized
    return cache.cached(_KIND, key(tier), lambda: compiler.build_kernel(ptx, entry, instruments, tier))
