"""What kernels compute with, as far as their PTX shows it: opcodes alone, without knowing what they are for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

LOG2_E = "3FB8AA3B"
"""log2 e in float32, as PTX writes it behind `0f`."""
_OPCODE = re.compile(r"(?<![\w%.$])(ex2|lg2|rcp|div|fma|tanh|mma|wmma|wgmma)((?:\.\w+)+)")
_NARROWED = re.compile(r"(?<![\w%.$])cvt\.\w+(?:\.\w+)*?\.b?f16(?:x2)?\.f32\s+(%\w+)")
_TO_E4M3 = re.compile(r"(?<![\w%.$])cvt\.(?:\w+\.)*e4m3x2\.f(?:32|16x2)\b")
_HALVES = re.compile(r"(?<![\w%.$])(?:mul|fma)\.(?:\w+\.)*b?f16(?:x2)?\b")
_PACKED = re.compile(r"(?<![\w%.$])mov\.b(?:32|64)\s+(%\w+)\s*,\s*\{([^}]*)\}")
_REGISTER = re.compile(r"%\w+")


@dataclass(frozen=True)
class Arithmetic:
    """Of a module, all its kernels together: what one of them does counts for all."""

    tensor_cores: bool
    """It multiplies matrices on tensor cores."""
    functions: str
    """The most accurate that it can have, in the words of `Numerics.functions`."""
    tanh_approx: bool
    """It has approximate hyperbolic tangents."""
    e4m3: bool
    """It multiplies e4m3, or converts to it."""
    narrows: bool
    """It rounds something to 16 bits that it does not only store to global memory."""
    halves: bool
    """It multiplies numbers of 16 bits outside of tensor cores."""

    @property
    def rounds_to_16_bits(self) -> bool:
        """It makes a number of 16 bits that it goes on to use."""
        return self.narrows or self.halves

    @classmethod
    def of(cls, ptx: str) -> Arithmetic:
        """Read from its text."""
        opcodes = Counter((m.group(1), m.group(2)) for m in _OPCODE.finditer(ptx))
        return cls(
            tensor_cores=any(name in ("mma", "wmma", "wgmma") for name, _ in opcodes),
            functions=_functions(opcodes, ptx),
            tanh_approx=any(name == "tanh" for name, _ in opcodes),
            e4m3=any("e4m3" in words.split(".") for _, words in opcodes) or _TO_E4M3.search(ptx) is not None,
            narrows=_narrows(ptx),
            halves=_HALVES.search(ptx) is not None,
        )

    @classmethod
    def combined(cls, each: Sequence[Arithmetic]) -> Arithmetic:
        """Of several modules together."""
        order = ("fast", "__expf", "accurate")
        return cls(
            tensor_cores=any(a.tensor_cores for a in each),
            functions=min((a.functions for a in each), key=order.index),
            tanh_approx=any(a.tanh_approx for a in each),
            e4m3=any(a.e4m3 for a in each),
            narrows=any(a.narrows for a in each),
            halves=any(a.halves for a in each),
        )


def _functions(opcodes: Counter[tuple[str, str]], ptx: str) -> str:
    def count(name: str, *modifiers: str) -> int:
        return sum(n for (of, words), n in opcodes.items() if of == name and set(modifiers) & set(words.split(".")))

    if count("div", "approx", "full") or count("rcp", "approx") or count("lg2", "approx"):
        return "fast"
    # expf takes its argument apart with one fused multiply-add that rounds down, before ex2.approx; __expf does not.
    if count("ex2", "approx") <= count("fma", "rm"):
        return "accurate"
    return "__expf" if LOG2_E in ptx else "fast"


def _narrows(ptx: str) -> bool:
    """Whether a number that was rounded to 16 bits is used for more than a store to global memory."""
    narrowed = set(_NARROWED.findall(ptx))
    if not narrowed:
        return False
    for line in ptx.splitlines():
        if (packed := _PACKED.search(line)) and narrowed & set(_REGISTER.findall(packed.group(2))):
            narrowed.add(packed.group(1))
    for line in ptx.splitlines():
        if "st.global" in line or ".reg" in line or _NARROWED.search(line) or _PACKED.search(line):
            continue
        if narrowed & set(_REGISTER.findall(line)):
            return True
    return False
