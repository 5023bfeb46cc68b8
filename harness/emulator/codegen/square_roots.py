"""Square roots of doubles from the CPU's approximation of 1 / sqrt(x), on CPUs where a root takes longer than that.

The approximation y has a relative error below 2^-14. With e = 1 - x y^2, the series
1 / sqrt(1 - e) = 1 + e / 2 + 3 e^2 / 8 + ... reduces it to 2^-40, for the reciprocal and for the root g. What is left
of the root, (x - g^2) / 2 sqrt(x), is then known to 2^-39. If g plus that rounds to the same double whether it is a
2^36th larger or smaller, then this double is the root, correctly rounded (Ziv, 'Fast evaluation of elementary
mathematical functions with correctly rounded last bit', 1991). One root in millions is not decided that way.
"""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.codegen.vector_ir_builder import splat, splat_float, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter

_UNCERTAINTY = 2.0**-36
_LEAST, _MOST = (1023 + exponent << 52 for exponent in (-400, 400))
"""Bits of the numbers between which nothing overflows or is subnormal."""
_KIND = vector("double")
_WIDTH = 8
"""Doubles of one approximation."""


def square_root(lanes: WarpEmitter, x: str) -> str:
    """The square roots of 32 doubles; if that of an active lane is not decided, the CPU's own."""
    above = lanes.binary("sub", "i64", lanes.cast("bitcast", "double", x, "i64"), splat("i64", _LEAST))
    inside = lanes.compare("ult", "i64", above, splat("i64", _MOST - _LEAST))
    y = _approximated(lanes, x)
    g = lanes.binary("fmul", "double", x, y)
    e = lanes.fma("double", lanes.op(f"fneg {_KIND} {g}"), y, splat_float("double", 1.0))
    series = lanes.fma("double", e, splat_float("double", 0.375), splat_float("double", 0.5))
    g, y = (lanes.fma("double", lanes.binary("fmul", "double", value, e), series, value) for value in (g, y))
    left = lanes.fma("double", lanes.op(f"fneg {_KIND} {g}"), g, x)
    less, more = (
        lanes.fma("double", left, lanes.binary("fmul", "double", y, splat_float("double", 0.5 + error)), g)
        for error in (-_UNCERTAINTY / 2, _UNCERTAINTY / 2)
    )
    decided = lanes.binary("and", "i1", inside, lanes.compare("oeq", "double", less, more))
    open_lanes = lanes.op(f"and i32 {lanes.op(f'xor i32 {lanes.bits_of(decided)}, -1')}, {lanes.active_bits()}")
    before, own, after = (lanes.fresh_label(word) for word in ("roots", "undecided", "rooted"))
    lanes.do(f"br label %{before}")
    lanes.label(before)
    lanes.do(f"br i1 {lanes.op(f'icmp ne i32 {open_lanes}, 0')}, label %{own}, label %{after}, !prof !0")
    lanes.label(own)
    root = lanes.intrinsic("llvm.sqrt.v32f64", _KIND, (_KIND, x))
    lanes.do(f"br label %{after}")
    lanes.label(after)
    return lanes.op(f"phi {_KIND} [ {less}, %{before} ], [ {root}, %{own} ]")


def _approximated(lanes: WarpEmitter, x: str) -> str:
    """1 / sqrt(x) of 32 doubles to 14 bits."""
    kind = f"<{_WIDTH} x double>"
    parts = []
    for first in range(0, at.LANES, _WIDTH):
        order = ", ".join(f"i32 {first + place}" for place in range(_WIDTH))
        part = lanes.op(f"shufflevector {_KIND} {x}, {_KIND} poison, <{_WIDTH} x i32> <{order}>")
        arguments = (kind, part), (kind, "zeroinitializer"), ("i8", "-1")
        parts.append(lanes.intrinsic("llvm.x86.avx512.rsqrt14.pd.512", kind, *arguments))
    width = _WIDTH
    while len(parts) > 1:
        order = ", ".join(f"i32 {place}" for place in range(2 * width))
        kind = f"<{width} x double>"
        pairs = zip(parts[::2], parts[1::2])
        parts = [lanes.op(f"shufflevector {kind} {a}, {kind} {b}, <{2 * width} x i32> <{order}>") for a, b in pairs]
        width *= 2
    return parts[0]
