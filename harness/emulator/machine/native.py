"""LLVM IR -> native code in this process; compiled objects are kept on disk, so that a second run needs no compiler."""

from __future__ import annotations

import hashlib
import threading
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from harness.cache import default_cache
from harness.errors import CompileError

_LOCK = threading.Lock()


def host_key() -> tuple[str, ...]:
    """What native code depends on besides its source: llvmlite, triple, CPU and its features."""
    return llvmlite.__version__, *_host()


def _host() -> tuple[str, str, str]:
    return llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


@lru_cache(maxsize=1)
def _initialize() -> None:
    # Newer llvmlite initialises the core itself and refuses to be asked.
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _target_machine() -> llvm.TargetMachine:
    triple, cpu, features = _host()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=2, reloc="default", codemodel="jitdefault", jit=True
    )


def _optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Three passes do for generated code what LLVM's whole -O1 does, in a fifth of its time.

    They put the two slots into registers, remove what is computed twice, and fold what is left.
    """
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_new_gvn_pass()
    passes.add_instruction_combine_pass()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def compile_ir(ir: str) -> bytes:
    """LLVM IR text -> a native object file. Safe to call from several threads."""
    _initialize()
    context = llvm.create_context()
    try:
        module = llvm.parse_assembly(ir, context=context)
        module.triple = _host()[0]
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"the emulator generated code that LLVM refuses; please report it: {error}") from error
    machine = _target_machine()
    _optimize(module, machine)
    return bytes(machine.emit_object(module))


# The runtime ----------------------------------------------------------------------------------------------------------


def _runtime_key() -> tuple[str, ...]:
    """Found from files, so that a warm start does not import Numba."""
    emulator = Path(__file__).parents[1]
    sources = sorted([*emulator.glob("machine/*.py"), *emulator.glob("memory/*.py")])
    texts = b"\0".join(source.read_bytes() for source in sources)
    return hashlib.sha256(texts).hexdigest(), version("numba"), *host_key()


def _build_runtime() -> bytes:
    """Let Numba compile `runtime.EXPORTS`, take its IR, and put plain C-like functions in front."""
    from numba import njit, types

    from harness.emulator.machine import runtime

    _initialize()
    i64 = types.int64
    wrappers = []
    modules = []
    internal = []
    for name, (function, count) in runtime.EXPORTS.items():
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
    linked.triple = _host()[0]
    for text in modules:
        linked.link_in(llvm.parse_assembly(text, context=context))
    for function in linked.functions:
        if function.name in internal:
            function.linkage = "internal"
    linked.verify()
    # Numba has optimised it already.
    return bytes(_target_machine().emit_object(linked))


@lru_cache(maxsize=1)
def _engine() -> llvm.ExecutionEngine:
    """The process's only engine; everything that is ever compiled is added to it."""
    _initialize()
    module = llvm.parse_assembly("")
    module.triple = _host()[0]
    engine = llvm.create_mcjit_compiler(module, _target_machine())
    runtime = default_cache().cached("runtime", _runtime_key(), _build_runtime)
    engine.add_object_file(llvm.ObjectFileRef.from_data(runtime))
    engine.finalize_object()
    return engine


@cache
def runtime_address(name: str) -> int:
    """Address of one of the runtime's functions."""
    with _LOCK:
        return int(_engine().get_function_address(f"sandbox_{name}"))


_loaded: dict[str, int] = {}


def native_address(symbol: str, native: bytes) -> int:
    """Load an object file that `compile_ir` made, and find its function."""
    runtime_address("run_blocks")
    with _LOCK:
        if symbol not in _loaded:
            engine = _engine()
            engine.add_object_file(llvm.ObjectFileRef.from_data(native))
            engine.finalize_object()
            _loaded[symbol] = int(engine.get_function_address(symbol))
        return _loaded[symbol]
