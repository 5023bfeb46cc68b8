"""Emits what additions to 16-bit floats and vectors call: which lanes have addresses of their own, and copies of words.

Atomics of one instruction at different addresses do not affect each other, so all can be done at once. `translate` has
left the lanes' host addresses in HOSTS; words are copied to and from DATA.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from harness.emulator.abi import layout as at
from harness.emulator.codegen.functions.memory_requests import data, functions_ir, pointer
from harness.emulator.codegen.vector_ir_builder import BITS, VectorIRBuilder, splat, vector

FIRST_OF_EACH = "first_of_each"
"""Function that takes a warp and a mask, and returns the lanes in it of which no lower one has the same address."""
_ELEMENTS = ("i16", "i32")
GATHERS = {element: f"gather_{element}" for element in _ELEMENTS}
"""Function by element type that copies the words of the lanes in a mask to DATA. It takes a warp and a mask."""
SCATTERS = {element: f"scatter_{element}" for element in _ELEMENTS}
"""Function by element type that copies them back."""


def atomic_rounds_ir() -> str:
    """All functions as LLVM IR."""
    names: dict[str, Callable[[VectorIRBuilder], None]] = {FIRST_OF_EACH: _first_of_each}
    names |= {name: partial(_gather, element=element) for element, name in GATHERS.items()}
    names |= {name: partial(_scatter, element=element) for element, name in SCATTERS.items()}
    return functions_ir({f"i64 @sandbox_{name}(i64 %warp, i64 %mask)": emit for name, emit in names.items()})


def _first_of_each(v: VectorIRBuilder) -> None:
    """Addresses with equal lower halves are taken for equal, which is slower where they are not, and right."""
    mask = v.op("trunc i64 %mask to i32")
    words = v.op(f"load <64 x i32>, ptr {pointer(v, '%warp', at.HOSTS)}, align 64")
    order = ", ".join(f"i32 {2 * lane}" for lane in range(at.LANES))
    hosts = v.op(f"shufflevector <64 x i32> {words}, <64 x i32> poison, <32 x i32> <{order}>")
    repeated = "0"
    for distance in range(1, at.LANES // 2 + 1):
        order = ", ".join(f"i32 {(lane + distance) % at.LANES}" for lane in range(at.LANES))
        others = v.op(f"shufflevector <32 x i32> {hosts}, <32 x i32> poison, <32 x i32> <{order}>")
        equal = v.bits_of(v.compare("eq", "i32", hosts, others))
        above = v.op(f"shl i32 {v.op(f'and i32 {equal}, {mask}')}, {distance}")
        wrapped = v.op(f"and i32 {equal}, {v.op(f'shl i32 {mask}, {at.LANES - distance}')}")
        repeated = v.op(f"or i32 {repeated}, {v.op(f'or i32 {above}, {wrapped}')}")
    new = v.op(f"and i32 {mask}, {v.op(f'xor i32 {repeated}, -1')}")
    v.do(f"ret i64 {v.widen(new)}")


def _places(v: VectorIRBuilder) -> tuple[str, str]:
    """Pointers of the lanes, and which of them are in the mask."""
    hosts = v.op(f"load <32 x i64>, ptr {pointer(v, '%warp', at.HOSTS)}, align 64")
    return v.op(f"inttoptr <32 x i64> {hosts} to <32 x ptr>"), v.lanes_of(v.op("trunc i64 %mask to i32"))


def _gather(v: VectorIRBuilder, element: str) -> None:
    places, active = _places(v)
    kind, align = vector(element), str(BITS[element] // 8)
    arguments = ("<32 x ptr>", places), ("i32", align), ("<32 x i1>", active), (kind, splat(element, 0))
    row = v.intrinsic(f"llvm.masked.gather.v32{element}.v32p0", kind, *arguments)
    v.do(f"store {kind} {row}, ptr {data(v, element, 0)}, align 32")
    v.do("ret i64 0")


def _scatter(v: VectorIRBuilder, element: str) -> None:
    places, active = _places(v)
    name, kind = f"llvm.masked.scatter.v32{element}.v32p0", vector(element)
    v.declarations.add(f"declare void @{name}({kind}, <32 x ptr>, i32, <32 x i1>)")
    row = v.op(f"load {kind}, ptr {data(v, element, 0)}, align 32")
    v.do(f"call void @{name}({kind} {row}, <32 x ptr> {places}, i32 {BITS[element] // 8}, <32 x i1> {active})")
    v.do("ret i64 0")
