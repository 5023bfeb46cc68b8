"""LLVM IR -> native object files, for the CPU that this is."""

from __future__ import annotations

from functools import lru_cache

import llvmlite
import llvmlite.binding as llvm

from harness.emulator.native.tier import Tier
from harness.support.errors import CompileError


def host_key() -> tuple[str, ...]:
    """What native code depends on besides its source: llvmlite, triple, CPU and its features."""
    return llvmlite.__version__, *host()


@lru_cache(maxsize=1)
def host() -> tuple[str, str, str]:
    """Triple, CPU and its features."""
    return llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


@lru_cache(maxsize=1)
def initialize() -> None:
    """Ask LLVM for this CPU's code generator, once."""
    # Newer llvmlite initialises the core itself and refuses to be asked.
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def target_machine(tier: Tier = Tier.OPTIMIZED) -> llvm.TargetMachine:
    """LLVM's code generator, set up for code that this process runs."""
    triple, cpu, features = host()
    opt = 0 if tier is Tier.BASELINE else 2
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=opt, reloc="default", codemodel="jitdefault", jit=True
    )


def optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
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


def optimize_calls(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """LLVM's own -O3, for code in many small functions, put into each other; after -O2 it is slower by a third."""
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def compile_ir(ir: str, tier: Tier = Tier.OPTIMIZED) -> bytes:
    """LLVM IR text -> a native object file. Safe to call from several threads, but llvmlite lets one work at a time."""
    initialize()
    context = llvm.create_context()
    try:
        module = llvm.parse_assembly(ir, context=context)
        module.triple = host()[0]
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"the emulator generated code that LLVM refuses; please report it: {error}") from error
    machine = target_machine(tier)
    if tier is Tier.OPTIMIZED:
        optimize(module, machine)
    return bytes(machine.emit_object(module))
