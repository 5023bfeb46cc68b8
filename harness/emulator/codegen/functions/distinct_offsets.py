"""Emits the count of distinct offsets and sectors among a warp's 32 offsets, in any order.

Sorting them takes 15 steps, each of which waits for the one before. Where the CPU has a fast instruction that compares
each element of a vector with those before it, six of these are enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.emulator.abi import layout as at
from harness.emulator.codegen.cpu import Cpu
from harness.emulator.codegen.functions.memory_requests import functions_ir, population
from harness.emulator.codegen.vector_ir_builder import VectorIRBuilder, splat, vector

COUNT_DISTINCT = "sandbox_count_distinct"
"""Function of 32 offsets that returns `packed_counts`."""
SECTOR_BITS = 5
_QUARTER = at.LANES // 4


def distinct_offsets_ir(cpu: Cpu) -> str:
    """The function as LLVM IR."""
    emit = _compared if cpu.compares_fast else _sorted
    return functions_ir({f"i64 @{COUNT_DISTINCT}(<32 x i32> %offsets) noinline": emit})


def shuffled(v: VectorIRBuilder, value: str, lanes: Sequence[int], kind: str = "32 x i32") -> str:
    """A vector of these elements of another."""
    order = ", ".join(f"i32 {lane}" for lane in lanes)
    return v.op(f"shufflevector <{kind}> {value}, <{kind}> poison, <{len(lanes)} x i32> <{order}>")


def bits_where(v: VectorIRBuilder, predicate: str, a: str, b: str) -> str:
    """The mask of lanes where a comparison of i32 holds."""
    return v.bits_of(v.compare(predicate, "i32", a, b))


def packed_counts(v: VectorIRBuilder, differ: str, sectors: str) -> str:
    """Numbers of distinct offsets and sectors, in the halves of an i64: one more than there are changes."""
    high = v.op(f"shl i64 {v.op(f'add i64 {population(v, sectors)}, 1')}, 32")
    return v.op(f"or i64 {high}, {v.op(f'add i64 {population(v, differ)}, 1')}")


def changes(v: VectorIRBuilder, offsets: str, before: str) -> tuple[str, str]:
    """Where offsets and sectors differ from those of the lane before."""
    bits = splat("i32", SECTOR_BITS)
    sectors = v.binary("lshr", "i32", offsets, bits), v.binary("lshr", "i32", before, bits)
    return bits_where(v, "ne", offsets, before), bits_where(v, "ne", *sectors)


def _sorted(v: VectorIRBuilder) -> None:
    """Sort by a bitonic network (Batcher, 'Sorting networks', 1968)."""
    lanes, kind, values = range(at.LANES), vector("i32"), "%offsets"
    for run in (2, 4, 8, 16, 32):
        distance = run // 2
        while distance:
            others = shuffled(v, values, [lane ^ distance for lane in lanes])
            low, high = (
                v.intrinsic(f"llvm.{which}.v32i32", kind, (kind, values), (kind, others)) for which in ("umin", "umax")
            )
            take_low = sum(1 << lane for lane in lanes if bool(lane & run) == bool(lane & distance))
            values = v.select("i32", v.lanes_of(str(take_low)), low, high)
            distance //= 2
    before = shuffled(v, values, [0, *range(at.LANES - 1)])
    v.do(f"ret i64 {packed_counts(v, *changes(v, values, before))}")


def _compared(v: VectorIRBuilder) -> None:
    """Compare each of four quarters with those before it. The instruction compares two at a time."""
    quarters = [shuffled(v, "%offsets", range(first, first + _QUARTER)) for first in range(0, at.LANES, _QUARTER)]
    order = ", ".join(f"i32 {place}" for place in range(2 * _QUARTER))
    pairs = {
        (a, b): v.op(f"shufflevector <8 x i32> {quarters[a]}, <8 x i32> {quarters[b]}, <16 x i32> <{order}>")
        for b in range(4)
        for a in range(b)
    }

    def first_differences(bits: int) -> str:
        """The mask of lanes, without the first, that differ from those before, after a shift by `bits`."""
        before = {}
        for pair, values in pairs.items():
            shifted = v.op(f"lshr <16 x i32> {values}, splat (i32 {bits})")
            before[pair] = v.intrinsic("llvm.x86.avx512.conflict.d.512", "<16 x i32>", ("<16 x i32>", shifted))
        found = before[0, 1], _any(v, before[0, 2], before[1, 2]), _any(v, before[0, 3], before[1, 3], before[2, 3])
        words = []
        for values in found:
            repeats = v.op(f"icmp ne <16 x i32> {values}, zeroinitializer")
            words.append(v.op(f"zext i16 {v.op(f'bitcast <16 x i1> {repeats} to i16')} to i32"))
        # Of the second and third word, the upper halves count: those of the third and fourth quarter.
        third = v.op(f"shl i32 {v.op(f'and i32 {words[1]}, 65280')}, 8")
        fourth = v.op(f"shl i32 {v.op(f'and i32 {words[2]}, 65280')}, 16")
        repeated = v.op(f"or i32 {v.op(f'or i32 {words[0]}, {third}')}, {fourth}")
        return v.op(f"xor i32 {repeated}, -2")

    v.do(f"ret i64 {packed_counts(v, first_differences(0), first_differences(SECTOR_BITS))}")


def _any(v: VectorIRBuilder, *values: str) -> str:
    result = values[0]
    for value in values[1:]:
        result = v.op(f"or <16 x i32> {result}, {value}")
    return result
