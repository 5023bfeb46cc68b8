"""Loads object files into this process as native code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from functools import lru_cache

import llvmlite.binding as llvm

from harness.emulator.native.llvm_compiler import host, initialize, target_machine
from harness.emulator.native.runtime_build import build_part, runtime_key
from harness.support.cache import default_cache

_LOCK = threading.RLock()
_loaded: dict[str, int] = {}
"""Address of each loaded symbol."""
_parts: set[str] = set()
"""Names of the runtime's parts that are loaded."""

PartBuilder = Callable[[str], bytes]
"""Function that returns the object file of the runtime's part with the given name."""


@lru_cache(maxsize=1)
def _engine() -> llvm.ExecutionEngine:
    """Return the engine of this process, to which all compiled code is added."""
    initialize()
    module = llvm.parse_assembly("")
    module.triple = host()[0]
    return llvm.create_mcjit_compiler(module, target_machine())


def _add(native: bytes) -> None:
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(native))
    engine.finalize_object()


def _address(symbol: str) -> int:
    if symbol not in _loaded:
        _loaded[symbol] = int(_engine().get_function_address(symbol))
    return _loaded[symbol]


def load_part(name: str, build: PartBuilder = build_part) -> None:
    """Load a part of the runtime for later kernels. `build` creates it if it is not in the disk cache."""
    with _LOCK:
        if name not in _parts:
            _add(default_cache().cached("runtime", (name, *runtime_key()), lambda: build(name)))
            _parts.add(name)


def load_runtime() -> int:
    """Load what every kernel needs. Returns the address of `run_blocks`."""
    with _LOCK:
        load_part("core")
        return _address("sandbox_run_blocks")


def load_caches() -> int:
    """Load the cache model. Returns the address of its `advance`."""
    with _LOCK:
        load_part("caches")
        return _address("sandbox_advance")


def load_copies() -> int:
    """Load the functions that asynchronous copies call. Returns the address of `drop_copies`."""
    with _LOCK:
        load_part("copies")
        return _address("sandbox_drop_copies")


def load_async_proxy() -> dict[str, int]:
    """Load the functions for mbarriers, bulk copies and warpgroup products. Returns addresses by context slot."""
    with _LOCK:
        load_part("async proxy")
        functions = ("drop_async", "land_left_stores", "warpgroup_arrives")
        return {name.upper(): _address(f"sandbox_{name}") for name in functions}


def load_tensor_cores() -> tuple[dict[str, int], int]:
    """Load the functions for `tcgen05`.

    Returns addresses by context slot, instead of those of `load_async_proxy`, and that of `land_commits`.
    """
    with _LOCK:
        load_part("tensor cores")
        slots = {
            "DROP_ASYNC": "begin_tensor_cluster",
            "LAND_LEFT_STORES": "end_tensor_block",
            "WARPGROUP_ARRIVES": "tensor_warp_waits",
        }
        found = {slot: _address(f"sandbox_{name}") for slot, name in slots.items()}
        return found, _address("sandbox_land_commits")


def native_address(symbol: str, native: bytes) -> int:
    """Load a kernel's object file and return its address. The runtime's parts it calls must be loaded."""
    return native_addresses((symbol,), native)[symbol]


def native_addresses(symbols: Collection[str], native: bytes) -> dict[str, int]:
    """Load an object file, unless it is loaded, and return the addresses of its functions `symbols`."""
    with _LOCK:
        if not _loaded.keys() >= set(symbols):
            _add(native)
        return {symbol: _address(symbol) for symbol in symbols}
