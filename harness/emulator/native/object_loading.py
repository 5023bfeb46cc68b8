"""Object files -> native code in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache

import llvmlite.binding as llvm

from harness.emulator.native.llvm_compiler import host, initialize, target_machine
from harness.emulator.native.runtime_build import build_caches, build_copies, build_runtime, runtime_key
from harness.support.cache import default_cache

_LOCK = threading.RLock()
_loaded: dict[str, int] = {}


@lru_cache(maxsize=1)
def _engine() -> llvm.ExecutionEngine:
    """The process's only engine; everything that is ever compiled is added to it."""
    initialize()
    module = llvm.parse_assembly("")
    module.triple = host()[0]
    return llvm.create_mcjit_compiler(module, target_machine())


def _load(symbol: str, native: bytes) -> int:
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(native))
    engine.finalize_object()
    return int(engine.get_function_address(symbol))


def load_runtime(build: Callable[[], bytes] = build_runtime) -> int:
    """Load the runtime, which `build` makes where it is not on disk; the address of its `run_blocks`."""
    with _LOCK:
        if "run_blocks" not in _loaded:
            native = default_cache().cached("runtime", runtime_key(), build)
            _loaded["run_blocks"] = _load("sandbox_run_blocks", native)
        return _loaded["run_blocks"]


def load_caches() -> int:
    """Load the cache model; the address of its `advance`."""
    with _LOCK:
        if "advance" not in _loaded:
            _loaded["advance"] = _load("sandbox_advance", default_cache().cached("caches", runtime_key(), build_caches))
        return _loaded["advance"]


def load_copies() -> int:
    """Load what asynchronous copies call, for the kernels that follow; the address of `drop_copies`."""
    with _LOCK:
        if "drop_copies" not in _loaded:
            native = default_cache().cached("copies", runtime_key(), build_copies)
            _loaded["drop_copies"] = _load("sandbox_drop_copies", native)
        return _loaded["drop_copies"]


def native_address(symbol: str, native: bytes) -> int:
    """Load a kernel's object file, and find its function. The runtime has to be there, since kernels call it."""
    with _LOCK:
        assert "run_blocks" in _loaded
        if symbol not in _loaded:
            _loaded[symbol] = _load(symbol, native)
        return _loaded[symbol]
