"""Functions that Numba compiles as one native object file: the runtime, the cache model, asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version

import llvmlite.binding as llvm

from harness.emulator.native.llvm_compiler import host, host_key, initialize, optimize, target_machine
from harness.emulator.native.source_key import source_hash


def runtime_key() -> tuple[str, ...]:
    """What the object files depend on."""
    return source_hash(), version("numba"), *host_key()


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


def _build(exports: Mapping[str, tuple[Callable[..., int], int]], more_ir: str = "") -> bytes:
    """Let Numba compile the functions, take its IR, and put plain C-like functions in front; `more_ir` comes beside."""
    from numba import njit, types

    initialize()
    i64 = types.int64
    wrappers = []
    modules = []
    internal = []
    for name, (function, count) in exports.items():
        dispatcher = njit(i64(*[i64] * count), error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(
            function
        )
        (signature,) = dispatcher.signatures
        mangled = dispatcher.overloads[signature].fndesc.llvm_func_name
        modules.append(dispatcher.inspect_llvm(signature))
        internal.append(mangled)
        formal = ", ".join(f"i64 %a{i}" for i in range(count))
        kinds = "".join(", i64" for _ in range(count))
        wrappers.append(
            f"declare i32 @{mangled}(ptr, ptr{kinds})\n"
            f"define i64 @sandbox_{name}({formal}) {{\n"
            f"  %result = alloca i64\n  %error = alloca ptr\n"
            f"  %status = call i32 @{mangled}(ptr %result, ptr %error{''.join(f', i64 %a{i}' for i in range(count))})\n"
            f"  %value = load i64, ptr %result\n  ret i64 %value\n}}\n"
        )
    # A context of our own: other threads may be compiling.
    context = llvm.create_context()
    linked = llvm.parse_assembly("\n".join(wrappers), context=context)
    linked.triple = host()[0]
    for text in modules:
        linked.link_in(llvm.parse_assembly(text, context=context))
    for function in linked.functions:
        if function.name in internal:
            function.linkage = "internal"
    machine = target_machine()
    # Numba has optimised its own already.
    own = llvm.parse_assembly(more_ir, context=context)
    own.triple = linked.triple
    optimize(own, machine)
    linked.link_in(own)
    linked.verify()
    return bytes(machine.emit_object(linked))
