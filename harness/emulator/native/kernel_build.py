"""PTX -> one piece of bytes that holds a kernel's facts and its native object file."""

from __future__ import annotations

import struct

from harness.emulator.codegen.kernel_facts import KernelFacts
from harness.emulator.instruments import Instruments

_LENGTH = struct.Struct("<Q")


def build_kernel(ptx: str, entry: str, instruments: Instruments) -> bytes:
    """Parse, generate, compile.

    Raises `CompileError` where the PTX is broken, `UnsupportedInstruction` where it holds what we do not emulate.
    """
    # Here, so that a warm start, which only splits, loads no code generator.
    from harness.emulator.codegen.kernel import generate
    from harness.emulator.native.llvm_compiler import compile_ir
    from harness.emulator.ptx.parser import parse

    code = generate(parse(ptx), entry, instruments)
    facts = code.facts.to_json()
    return _LENGTH.pack(len(facts)) + facts + compile_ir(code.ir)


def split_kernel(whole: bytes) -> tuple[KernelFacts, bytes]:
    """Facts and object file."""
    (length,) = _LENGTH.unpack_from(whole)
    end = _LENGTH.size + length
    return KernelFacts.from_json(whole[_LENGTH.size : end]), whole[end:]
