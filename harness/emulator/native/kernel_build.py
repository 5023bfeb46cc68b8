"""PTX -> one piece of bytes that holds a kernel's facts and its native object file."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from harness.emulator.codegen.kernel_facts import KernelFacts
from harness.emulator.instruments import Instruments
from harness.emulator.native.tier import Tier

if TYPE_CHECKING:
    from harness.ptx.instructions import Module

_LENGTHS = struct.Struct("<QQ")


@dataclass(frozen=True)
class BuiltKernel:
    """A kernel that is to be loaded."""

    facts: KernelFacts
    symbol: str
    """Name of the native function."""
    parts: tuple[str, ...]
    """Of the runtime: what it calls."""
    native: bytes
    """The object file."""

    def to_bytes(self) -> bytes:
        """For the cache."""
        facts = self.facts.to_json()
        link = json.dumps([self.symbol, self.parts]).encode()
        return _LENGTHS.pack(len(facts), len(link)) + facts + link + self.native

    @classmethod
    def from_bytes(cls, whole: bytes) -> BuiltKernel:
        """Back again."""
        facts, link = _LENGTHS.unpack_from(whole)
        start, middle = _LENGTHS.size, _LENGTHS.size + facts
        symbol, parts = json.loads(whole[middle : middle + link])
        return cls(KernelFacts.from_json(whole[start:middle]), symbol, tuple(parts), whole[middle + link :])


def build_kernel(ptx: str, entry: str, instruments: Instruments, tier: Tier) -> bytes:
    """Parse, generate, compile; a `BuiltKernel` in bytes.

    Raises `CompileError` where the PTX is broken, `UnsupportedInstruction` where it holds what we do not emulate.
    """
    # Here, so that a warm start, which only reads what was built, loads no code generator.
    from harness.emulator.codegen.kernel import generate
    from harness.emulator.native.llvm_compiler import compile_ir
    from harness.emulator.native.runtime_parts import parts_of

    code = generate(_parsed(ptx), entry, instruments, outlined=tier is Tier.BASELINE)
    # Both tiers of a kernel may be in one process.
    symbol = f"{code.symbol}_{tier.value}"
    native = compile_ir(code.ir_as(symbol), tier)
    return BuiltKernel(code.facts, symbol, parts_of(code.calls), native).to_bytes()


@lru_cache(maxsize=1)
def _parsed(ptx: str) -> Module:
    """The module. Kernels of one module are built one after the other, and its text is long."""
    from harness.ptx.parsing.parser import parse

    return parse(ptx)
