"""Functions in a subset of Python as native object files: the runtime, the cache model, asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import llvmlite.binding as llvm

from harness.emulator.native.llvm_compiler import host, host_key, initialize, optimize, optimize_calls, target_machine
from harness.emulator.native.source_key import source_hash


def runtime_key() -> tuple[str, ...]:
    """What the object files depend on."""
    return source_hash(), *host_key()


def build_runtime() -> bytes:
    """`exports.EXPORTS`, and the dot products of tensor cores."""
    from harness.emulator.codegen.dot_product import runtime_ir
    from harness.emulator.runtime.exports import EXPORTS

    return _build(EXPORTS, runtime_ir())


def build_caches() -> bytes:
    """`caches.EXPORTS`, which only those need who ask for the cache model."""
    from harness.emulator.memory.caches import EXPORTS

    return _build(EXPORTS)


def build_copies() -> bytes:
    """`async_copies.EXPORTS`, which only kernels need that copy asynchronously."""
    from harness.emulator.memory.async_copies import EXPORTS

    return _build(EXPORTS)


def _build(exports: Mapping[str, Callable[..., int]], more_ir: str = "") -> bytes:
    """An object file with `sandbox_NAME` for each; `more_ir` comes beside."""
    from harness.emulator.codegen.python_subset import translate

    initialize()
    # A context of our own: other threads may be compiling.
    context = llvm.create_context()
    machine = target_machine()
    module = llvm.parse_assembly(
        translate({f"sandbox_{name}": function for name, function in exports.items()}), context=context
    )
    module.triple = host()[0]
    optimize_calls(module, machine)
    own = llvm.parse_assembly(more_ir, context=context)
    own.triple = module.triple
    optimize(own, machine)
    module.link_in(own)
    module.verify()
    return bytes(machine.emit_object(module))
