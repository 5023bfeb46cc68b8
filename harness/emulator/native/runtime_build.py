"""Compiles the parts of the runtime to native object files."""

from __future__ import annotations

import llvmlite.binding as llvm

from harness.emulator.native.llvm_compiler import (
    host,
    host_cpu,
    host_key,
    initialize,
    optimize,
    optimize_calls,
    target_machine,
)
from harness.emulator.native.source_key import source_hash


def runtime_key() -> tuple[str, ...]:
    """Return everything that the object files depend on."""
    return source_hash(), *host_key()


def build_part(name: str) -> bytes:
    """Return the object file of a part of `runtime_parts.PARTS`, which exports its functions as `sandbox_NAME`."""
    # Imported here, so that a process that only reads cached parts does not load the code generator.
    from harness.emulator.codegen.functions.python_subset import translate
    from harness.emulator.native.runtime_parts import PARTS

    part = PARTS[name]
    initialize()
    # A separate context, because other threads may be compiling.
    context = llvm.create_context()
    machine = target_machine()
    module = llvm.parse_assembly(
        translate({f"sandbox_{name}": function for name, function in part.exports.items()}), context=context
    )
    module.triple = host()[0]
    optimize_calls(module, machine)
    texts = [emit() for emit in part.ir] + [emit(host_cpu()) for emit in part.tuned_ir]
    for text in texts:
        own = llvm.parse_assembly(text, context=context)
        own.triple = module.triple
        optimize(own, machine)
        module.link_in(own)
    module.verify()
    return bytes(machine.emit_object(module))
