"""Determines from a kernel's opcodes which kinds of arithmetic it uses."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.ptx.statements import instructions

_LOG2_E = "3FB8AA3B"
"""log2 e in float32, as PTX writes it after `0f`."""
_PRODUCTS = ("mma", "wmma", "wgmma")
_MATRIX_PRODUCT = re.compile(rf"(?<![\w%.$])(?:{'|'.join(_PRODUCTS)})\.")
_FLOAT_LITERAL = re.compile(r"\b0[fF]([0-9a-fA-F]{8})\b")
_REGISTER = re.compile(r"%\w+")
_HALVES = frozenset(("f16", "bf16", "f16x2", "bf16x2"))
_MOVES = ("mov.b32", "mov.b64")
"""Instructions that pack several registers into a wider one if their source is a vector."""


def uses_tensor_cores(ptx: str) -> bool:
    """Whether a module multiplies matrices on tensor cores."""
    return _MATRIX_PRODUCT.search(ptx) is not None


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic that the kernels of a module use. A property of one kernel counts for all of them."""

    tensor_cores: bool
    """Whether matrices are multiplied on tensor cores."""
    functions: str
    """The most accurate exponentials that the code may contain, as a value of `Numerics.functions`."""
    tanh_approx: bool
    """Whether the code computes approximate hyperbolic tangents."""
    e4m3: bool
    """Whether numbers are converted to e4m3, or numbers of that format are multiplied."""
    narrows: bool
    """Whether a number is rounded to 16 bits and then used for more than a store to global memory."""
    shifts_exponents: bool
    """Whether an integer is shifted to where float32 has its exponent, as for a power of two from a polynomial."""
    float_literals: frozenset[float]
    """Positive whole numbers among the float32 literals."""
    halves: bool
    """Whether 16-bit numbers are multiplied outside of tensor cores."""

    @property
    def rounds_to_16_bits(self) -> bool:
        """Whether the code uses 16-bit results further."""
        return self.narrows or self.halves

    @classmethod
    def of(cls, ptx: str) -> Arithmetic:
        """Analyse the text of a module."""
        found = list(instructions(ptx))
        counts = Counter(form for form, _ in found)
        words = {form: form.split(".") for form in counts}
        narrowing = {form for form, parts in words.items() if _rounds_to_16_bits(parts)}
        return cls(
            tensor_cores=uses_tensor_cores(ptx),
            functions=_functions(
                [(words[form], count) for form, count in counts.items()],
                has_log2_e=any(_LOG2_E in operands.upper() for _, operands in found),
            ),
            tanh_approx=any(parts[0] == "tanh" for parts in words.values()),
            e4m3=any(map(_has_e4m3, words.values())),
            shifts_exponents=any(form == "shl.b32" and operands.endswith(" 23") for form, operands in found),
            float_literals=frozenset(_whole_literals(found)),
            narrows=bool(narrowing) and _narrows(found, narrowing),
            halves=any(parts[0] in ("mul", "fma") and not _HALVES.isdisjoint(parts) for parts in words.values()),
        )

    @classmethod
    def combined(cls, each: Sequence[Arithmetic]) -> Arithmetic:
        """Combine the arithmetic of several modules."""
        order = ("fast", "__expf", "accurate")
        return cls(
            tensor_cores=any(a.tensor_cores for a in each),
            functions=min((a.functions for a in each), key=order.index),
            tanh_approx=any(a.tanh_approx for a in each),
            e4m3=any(a.e4m3 for a in each),
            shifts_exponents=any(a.shifts_exponents for a in each),
            float_literals=frozenset().union(*(a.float_literals for a in each)),
            narrows=any(a.narrows for a in each),
            halves=any(a.halves for a in each),
        )


def _has_e4m3(parts: list[str]) -> bool:
    if parts[0] == "cvt":
        return "e4m3x2" in parts[:-1] and parts[parts.index("e4m3x2") + 1] in ("f32", "f16x2", "bf16x2")
    return parts[0] in _PRODUCTS and "e4m3" in parts


def _whole_literals(found: list[tuple[str, str]]) -> set[float]:
    words = {word for _, operands in found for word in _FLOAT_LITERAL.findall(operands)}
    numbers = {struct.unpack(">f", bytes.fromhex(word))[0] for word in words}
    return {number for number in numbers if number > 0 and number.is_integer()}


def _rounds_to_16_bits(parts: list[str]) -> bool:
    return parts[0] == "cvt" and parts[-1] == "f32" and parts[-2] in _HALVES


def _functions(forms: list[tuple[list[str], int]], has_log2_e: bool) -> str:
    def count(name: str, *modifiers: str) -> int:
        return sum(n for parts, n in forms if parts[0] == name and not set(modifiers).isdisjoint(parts))

    if count("div", "approx", "full") or count("rcp", "approx") or count("lg2", "approx"):
        return "fast"
    # Before ex2.approx, expf splits its argument with a fused multiply-add that rounds down; __expf does not.
    if count("ex2", "approx") <= count("fma", "rm"):
        return "accurate"
    return "__expf" if has_log2_e else "fast"


def _narrows(found: list[tuple[str, str]], narrowing: set[str]) -> bool:
    """Whether a number rounded to 16 bits is used for more than a store to global memory."""
    narrowed: set[str] = {operands.partition(",")[0].strip() for form, operands in found if form in narrowing}
    used = []
    for form, operands in found:
        registers = _REGISTER.findall(operands)
        if form in _MOVES and "{" in operands.partition(",")[2]:
            if not narrowed.isdisjoint(registers[1:]):
                narrowed.add(registers[0])
        elif form not in narrowing and not form.startswith("st.global"):
            used.append(registers)
    return any(not narrowed.isdisjoint(registers) for registers in used)
