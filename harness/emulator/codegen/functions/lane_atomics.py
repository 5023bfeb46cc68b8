"""Emits what atomics on one number call: functions that read, combine and write, one lane after the other.

That takes less time than finding out which lanes have an address in common, and the order is right without it.
`translate` has left the lanes' host addresses in HOSTS. Their values are in DATA, where the functions leave the old
ones, and those that `cas` compares with in COMPARED.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from harness.emulator.abi import layout as at
from harness.emulator.codegen.vector_ir_builder import BITS, FLOAT, INTEGER, Prelude, VectorIRBuilder

COMPARED = at.DATA_2
_Combine = Callable[[VectorIRBuilder, str, str, str, str], str]
"""Emits the new value from element type, old value, operand and, for `cas`, what to compare with."""
_EXPONENT, _SIGN = 0x7F800000, 1 << 31


def _function(element: str, combine: _Combine, compares: bool = False) -> Prelude:
    """A function of the warp, the mask of lanes, and the mask of those that flush subnormals."""

    def build(v: VectorIRBuilder, warp: str, mask: str, flushing: str) -> str:
        base = v.op(f"inttoptr i64 {warp} to ptr")
        hosts, data, compared = (
            v.op(f"getelementptr i8, ptr {base}, i64 {offset}") for offset in (at.HOSTS, at.DATA, COMPARED)
        )
        v.do(f"br i1 {v.op(f'icmp eq i32 {mask}, 0')}, label %done, label %before")
        v.label("before")
        v.do("br label %loop")
        v.label("loop")
        v.do(f"%left = phi i32 [ {mask}, %before ], [ %rest, %loop ]")
        v.declarations.add("declare i32 @llvm.cttz.i32(i32, i1)")
        lane = v.op("call i32 @llvm.cttz.i32(i32 %left, i1 true)")

        def row(start: str, kind: str) -> str:
            return v.op(f"getelementptr {kind}, ptr {start}, i32 {lane}")

        host = v.op(f"load i64, ptr {row(hosts, 'i64')}")
        place = v.op(f"inttoptr i64 {host} to ptr")
        own = row(data, element)
        value = v.op(f"load {element}, ptr {own}")
        other = v.op(f"load {element}, ptr {row(compared, element)}") if compares else ""
        if combine is _add_flushed:
            other = v.op(f"trunc i32 {v.op(f'lshr i32 {flushing}, {lane}')} to i1")
        old = v.op(f"load {element}, ptr {place}")
        v.do(f"store {element} {combine(v, element, old, value, other)}, ptr {place}")
        v.do(f"store {element} {old}, ptr {own}")
        v.do(f"%rest = and i32 %left, {v.op('add i32 %left, -1')}")
        v.do(f"br i1 {v.op('icmp eq i32 %rest, 0')}, label %done, label %loop")
        v.label("done")
        return "0"

    return Prelude(("i64", "i32", "i32"), "i32", build)


def _binary(v: VectorIRBuilder, element: str, old: str, value: str, _: str, operation: str) -> str:
    return v.op(f"{operation} {element} {old}, {value}")


def _either(v: VectorIRBuilder, element: str, condition: str, yes: str, no: str) -> str:
    return v.op(f"select i1 {condition}, {element} {yes}, {element} {no}")


def _extreme(v: VectorIRBuilder, element: str, old: str, value: str, _: str, order: str) -> str:
    return _either(v, element, v.op(f"icmp {order} {element} {old}, {value}"), old, value)


def _exchange(v: VectorIRBuilder, element: str, old: str, value: str, _: str) -> str:
    return value


def _compare_and_swap(v: VectorIRBuilder, element: str, old: str, value: str, compared: str) -> str:
    return _either(v, element, v.op(f"icmp eq {element} {old}, {compared}"), value, old)


def _increment(v: VectorIRBuilder, element: str, old: str, limit: str, _: str) -> str:
    wraps = v.op(f"icmp uge {element} {old}, {limit}")
    return _either(v, element, wraps, "0", v.op(f"add {element} {old}, 1"))


def _decrement(v: VectorIRBuilder, element: str, old: str, limit: str, _: str) -> str:
    less = v.op(f"add {element} {old}, -1")
    return _either(v, element, v.op(f"icmp ult {element} {less}, {limit}"), less, limit)


def _add(v: VectorIRBuilder, element: str, old: str, value: str, _: str = "") -> str:
    floating = FLOAT[BITS[element]]
    x, y = (v.op(f"bitcast {element} {bits} to {floating}") for bits in (old, value))
    return v.op(f"bitcast {floating} {v.op(f'fadd {floating} {x}, {y}')} to {element}")


def _add_flushed(v: VectorIRBuilder, element: str, old: str, value: str, flushes: str) -> str:
    def flush(bits: str) -> str:
        is_tiny = v.op(f"icmp eq i32 {v.op(f'and i32 {bits}, {_EXPONENT}')}, 0")
        return _either(v, "i32", v.op(f"and i1 {is_tiny}, {flushes}"), v.op(f"and i32 {bits}, {_SIGN}"), bits)

    return flush(_add(v, element, flush(old), flush(value)))


def _functions() -> dict[str, Prelude]:
    combine: dict[str, _Combine] = {word: partial(_binary, operation=word) for word in ("add", "and", "or", "xor")}
    for sign in "su":
        combine |= {
            f"min.{sign}": partial(_extreme, order=f"{sign}lt"),
            f"max.{sign}": partial(_extreme, order=f"{sign}gt"),
        }
    combine["exch"] = _exchange
    found = {(name, bits): _function(INTEGER[bits], emit) for name, emit in combine.items() for bits in (32, 64)}
    found |= {("cas", bits): _function(INTEGER[bits], _compare_and_swap, compares=True) for bits in (16, 32, 64)}
    found |= {("inc", 32): _function("i32", _increment), ("dec", 32): _function("i32", _decrement)}
    found |= {("add.f", bits): _function(INTEGER[bits], _add) for bits in (32, 64)}
    found["add.f.ftz", 32] = _function("i32", _add_flushed)
    return {f"atomic.{name}{bits}": function for (name, bits), function in found.items()}


LANE_ATOMICS = _functions()
"""Functions that a kernel contains if it calls them, by name."""
