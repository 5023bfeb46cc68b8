"""How far hardware may be from the exact result in `.approx` and `.full` forms: PTX ISA 8.4, sections 9.7.3 and 9.7.4.

The emulator gives the exact result, rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.ptx.statements import instructions

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Format:
    """Floating-point format of a result, or of each half of a packed result."""

    bits: int
    fraction_bits: int
    smallest_exponent: int
    """Smallest exponent of a normal number."""
    largest_exponent: int

    def numbers(self, patterns: Array) -> Array:
        """Float64, where infinity is the power of two behind the largest number, so that distances are finite."""
        if self.bits == 64:
            values = patterns.view(np.float64).copy()
        elif self.bits == 32:
            values = patterns.view(np.float32).astype(np.float64)
        elif self.fraction_bits == 10:
            values = patterns.view(np.float16).astype(np.float64)
        else:
            values = (patterns.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        infinite = np.isinf(values)
        values[infinite] = np.copysign(2.0 ** min(self.largest_exponent + 1, 1023), values[infinite])
        return values

    def ulp(self, values: Array) -> Array:
        """The distance between numbers around `values`."""
        exponent = np.floor(np.log2(np.maximum(np.abs(values), 2.0**self.smallest_exponent)))
        return np.exp2(exponent - self.fraction_bits)


FORMATS = {
    "f16": Format(16, 10, -14, 15),
    "bf16": Format(16, 7, -126, 127),
    "f32": Format(32, 23, -126, 127),
    "f64": Format(64, 52, -1022, 1023),
}


@dataclass(frozen=True)
class Promise:
    """A bound of the error: all three parts together."""

    form: str
    """Format of the result; a key of `FORMATS`."""
    ulps: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0
    operands_within: float = np.inf
    """Operands of larger magnitude are promised nothing."""

    def kept(self, operand: Array, ours: Array, theirs: Array, ftz: bool) -> Array:
        """Where the hardware's result `theirs` keeps the promise, if `ours` is exact but for one rounding."""
        form = FORMATS[self.form]
        if ours.dtype.itemsize * 8 == 2 * form.bits:
            parts = (x.view(np.uint16).reshape(-1, 2) for x in (operand, ours, theirs))
            first, second = (
                self.kept(*(np.ascontiguousarray(p) for p in half), ftz) for half in zip(*map(_halves, parts))
            )
            both: Array = first & second
            return both
        with np.errstate(invalid="ignore", over="ignore"):
            a, b = form.numbers(ours), form.numbers(theirs)
            nan = np.isnan(a) | np.isnan(b)
            allowed = (self.ulps + 0.5) * form.ulp(np.where(nan, 1.0, a)) + self.relative * np.abs(a) + self.absolute
            fine = np.abs(a - b) <= allowed
            if ftz:  # one of the two lies below the smallest normal number
                edge = 2.0**form.smallest_exponent * (1 + 2.0 ** (2 - form.fraction_bits))
                fine |= (np.minimum(np.abs(a), np.abs(b)) == 0) & (np.maximum(np.abs(a), np.abs(b)) <= edge)
            if self.operands_within < np.inf:
                fine |= ~(np.abs(form.numbers(operand)) <= self.operands_within) & (np.abs(b) <= 1)
        found: Array = np.where(nan, np.isnan(a) & np.isnan(b), fine)
        return found


def _halves(pairs: Array) -> tuple[Array, Array]:
    return pairs[:, 0], pairs[:, 1]


_CIRCLE = {"absolute": 2**-14.7, "operands_within": 100 * np.pi}
"""sin and cos: 2**-20.5 within two turns, 2**-14.7 within fifty."""
PROMISES = {
    "div.approx.f32": Promise("f32", ulps=2),
    "div.full.f32": Promise("f32", ulps=2),
    "rcp.approx.f32": Promise("f32", ulps=1),
    "sqrt.approx.f32": Promise("f32", relative=2**-23),
    "rsqrt.approx.f32": Promise("f32", relative=2**-22.9),
    "sin.approx.f32": Promise("f32", **_CIRCLE),
    "cos.approx.f32": Promise("f32", **_CIRCLE),
    "lg2.approx.f32": Promise("f32", relative=2**-22, absolute=2**-22),
    "ex2.approx.f32": Promise("f32", ulps=2),
    "tanh.approx.f32": Promise("f32", relative=2**-11),
    # And half an ulp, which is more than that among subnormal results.
    "ex2.approx.f16": Promise("f16", relative=2**-9.9, ulps=0.5),
    "ex2.approx.bf16": Promise("bf16", relative=2**-7),
    "tanh.approx.f16": Promise("f16", absolute=2**-10.987),
    "tanh.approx.bf16": Promise("bf16", absolute=2**-8),
    # Of the upper word alone, which has 20 bits of the fraction.
    "rcp.approx.f64": Promise("f64", relative=2**-19),
    "rsqrt.approx.f64": Promise("f64", relative=2**-19),
}


def approximation(text: str) -> Promise | None:
    """The promise of the approximate instruction in `text`; None where there is none. No case has two."""
    for form, _ in instructions(text):
        opcode, *words = form.split(".")
        how = next((word for word in words if word in ("approx", "full")), None)
        if how is not None:
            kind = next(word for word in words if word.removesuffix("x2") in FORMATS)
            return PROMISES[f"{opcode}.{how}.{kind.removesuffix('x2')}"]
    return None
