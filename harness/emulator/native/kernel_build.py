"""Builds a kernel from PTX: its facts and its native object file, as bytes that can be cached."""

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
    """A compiled kernel that is not loaded yet."""

    facts: KernelFacts
    symbol: str
    """Name of the native function."""
    parts: tuple[str, ...]
    """Parts of the runtime that the kernel calls."""
    native: bytes
    """Content of the object file."""

    def to_bytes(self) -> bytes:
        """Encode the kernel for the cache."""
        facts = self.facts.to_json()
        link = json.dumps([self.symbol, self.parts]).encode()
        return _LENGTHS.pack(len(facts), len(link)) + facts + link + self.native

    @classmethod
    def from_bytes(cls, whole: bytes) -> BuiltKernel:
        """Decode the result of `to_bytes`."""
        facts, link = _LENGTHS.unpack_from(whole)
        start, middle = _LENGTHS.size, _LENGTHS.size + facts
        symbol, parts = json.loads(whole[middle : middle + link])
        return cls(KernelFacts.from_json(whole[start:middle]), symbol, tuple(parts), whole[middle + link :])


def build_kernel(ptx: str, entry: str, instruments: Instruments, tier: Tier) -> bytes:
    """Parse the PTX, generate code and compile it. Returns an encoded `BuiltKernel`.

    Raises `CompileError` for invalid PTX, and `UnsupportedInstruction` for instructions that are not emulated.
    """
    # Imported here, so that a process that only reads cached kernels does not load the code generator.
    from harness.emulator.codegen.kernel import generate
    from harness.emulator.native.llvm_compiler import compile_ir, host_cpu
    from harness.emulator.native.runtime_parts import parts_of

    code = generate(_parsed(ptx), entry, instruments, tier is Tier.BASELINE, host_cpu())
    # One process may load both tiers of a kernel.
    symbol = f"{code.symbol}_{tier.value}"
    native = compile_ir(code.ir_as(symbol), tier)
    return BuiltKernel(code.facts, symbol, parts_of(code.calls), native).to_bytes()


@lru_cache(maxsize=1)
def _parsed(ptx: str) -> Module:
    """Parse a module, with a cache of recent ones: the kernels of a module are built one after another."""
    from harness.ptx.parsing.parser import parse

    return parse(ptx)
