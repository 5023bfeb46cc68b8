"""What functions in LLVM IR for a warp's memory requests share: counts, copies of vectors, and the slow path."""

from __future__ import annotations

from collections.abc import Callable

from harness.emulator.abi import context
from harness.emulator.abi import layout as at
from harness.emulator.codegen.vector_ir_builder import BITS, VectorIRBuilder, module_ir, vector

SHAPES = (("i8", 1), ("i16", 1), ("i32", 1), ("i64", 1), ("i32", 2), ("i64", 2), ("i32", 4))
"""Element types and numbers of elements per lane that have functions of their own."""
Bodies = dict[str, Callable[[VectorIRBuilder], None]]
"""What emits the body of a function, by head."""
_SLOW = {
    "translate_lanes": ("ctx", "warp", "site", "space", "mask", "size", "0", "0"),
    "gather": ("warp", "mask", "item", "count"),
    "scatter": ("warp", "mask", "item", "count"),
}
"""Arguments of the functions that handle all other requests."""


def functions_ir(bodies: Bodies) -> str:
    """LLVM IR of functions."""
    functions: list[tuple[list[str], set[str]]] = []
    for head, emit in bodies.items():
        v = VectorIRBuilder()
        v.declarations |= {f"declare i64 @sandbox_{name}({', '.join(['i64'] * len(of))})" for name, of in _SLOW.items()}
        emit(v)
        functions.append(([f"define {head} {{", *v.lines, "}"], v.declarations))
    return module_ir(functions)


def add_counts(v: VectorIRBuilder, column: str, requested: str, sectors: str, unique_bytes: str) -> None:
    """Add a request to the counters of its instruction and buffer; all numbers are i64."""
    fewest = v.op(f"lshr i64 {v.op(f'add i64 {unique_bytes}, 31')}, 5")
    row = v.op(f"mul i64 %site, {slot(v, context.COUNTER_COLUMNS)}")
    place = v.op(f"mul i64 {v.op(f'add i64 {row}, {column}')}, {8 * at.COUNTERS_PER_ENTRY}")
    entry = v.op(f"add i64 {slot(v, context.COUNTERS)}, {place}")
    for number, amount in enumerate(("1", requested, sectors, fewest)):
        counter = pointer(v, entry, 8 * number)
        total = v.op(f"add i64 {v.op(f'load i64, ptr {counter}')}, {amount}")
        v.do(f"store i64 {total}, ptr {counter}")


def gathered(v: VectorIRBuilder, element: str, start: str, offsets: str, lanes: int = at.LANES) -> str:
    """The elements at offsets, i32, from a pointer."""
    places = v.op(f"getelementptr i8, ptr {start}, <{lanes} x i32> {offsets}")
    kind, align = f"<{lanes} x {element}>", str(BITS[element] // 8)
    arguments = (f"<{lanes} x ptr>", places), ("i32", align), (f"<{lanes} x i1>", "splat (i1 true)"), (kind, "poison")
    return v.intrinsic(f"llvm.masked.gather.v{lanes}{element}.v{lanes}p0", kind, *arguments)


def scatter(v: VectorIRBuilder, element: str, values: str, start: str, offsets: str, active: str) -> None:
    """Store the active lanes' elements at their offsets from a pointer. Of equal places, the highest lane's remains."""
    places = v.op(f"getelementptr i8, ptr {start}, <32 x i32> {offsets}")
    name, kind = f"llvm.masked.scatter.v32{element}.v32p0", vector(element)
    v.declarations.add(f"declare void @{name}({kind}, <32 x ptr>, i32, <32 x i1>)")
    arguments = f"{kind} {values}, <32 x ptr> {places}, i32 {BITS[element] // 8}, <32 x i1> {active}"
    v.do(f"call void @{name}({arguments})")


def slot(v: VectorIRBuilder, number: int) -> str:
    """Value of a slot of the context."""
    return v.op(f"load i64, ptr {pointer(v, '%ctx', number)}")


def pointer(v: VectorIRBuilder, base: str, offset: int | str) -> str:
    """Pointer to an integer address."""
    return v.op(f"inttoptr i64 {v.op(f'add i64 {base}, {offset}')} to ptr")


def population(v: VectorIRBuilder, bits: str) -> str:
    """Number of set bits of an i32, as i64."""
    return v.widen(v.intrinsic("llvm.ctpop.i32", "i32", ("i32", bits)))


def call(v: VectorIRBuilder, name: str, **constants: int | str) -> str:
    """Call a function in `_SLOW`. Arguments that are not constants are those of the calling function."""
    values = (constants.get(each, each if each.isdigit() else f"%{each}") for each in _SLOW[name])
    return v.op(f"call i64 @sandbox_{name}({', '.join(f'i64 {value}' for value in values)})")


def handled(v: VectorIRBuilder, copy: str, element: str, count: int) -> str:
    """Leave the request to functions that handle all of them. Returns whether it failed."""
    item = BITS[element] // 8
    failed = call(v, "translate_lanes", size=item * count)
    v.do(f"br i1 {v.op(f'icmp eq i64 {failed}, 0')}, label %copy, label %failed")
    v.label("copy")
    call(v, copy, item=item, count=count)
    v.do("br label %failed")
    v.label("failed")
    return failed


def data(v: VectorIRBuilder, element: str, item: int) -> str:
    """Pointer to the row of DATA with this item of all lanes."""
    return pointer(v, "%warp", at.DATA + item * at.LANES * BITS[element] // 8)
