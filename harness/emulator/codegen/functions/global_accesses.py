"""Emits accesses of global memory as runtime functions: vector code for what most requests are like.

It handles requests whose active lanes are all inside one buffer; anything else, faults included, is left to
`memory.translation.translate_lanes`, which gives the same counts lane by lane. Each lane's address is in ADDRESSES, and
its data in DATA.
"""

from __future__ import annotations

from harness.emulator.abi import context
from harness.emulator.abi import layout as at
from harness.emulator.codegen.functions.memory_requests import (
    SHAPES,
    Bodies,
    access_bodies,
    add_counts,
    call,
    data,
    end,
    functions_ir,
    gathered,
    pointer,
    population,
    scatter,
    slot,
)
from harness.emulator.codegen.vector_ir_builder import BITS, VectorIRBuilder, splat, vector

GLOBAL_LOADS = {(element, count): f"load_global_{element}x{count}" for element, count in SHAPES}
"""Function by element type and number of elements per lane. It takes context, warp, site, code of the state space and
mask, and returns 1 on a fault, else 0. Other shapes use `translate`, and `memory.copies.gather` or `scatter`."""
GLOBAL_STORES = {(element, count): f"store_global_{element}x{count}" for element, count in SHAPES}
TRANSLATE = "translate"
"""Function that leaves host addresses in HOSTS; it takes context, warp, site, code of the space, mask and size."""
_MOST_FREQUENT = ("i32", 1)
_UNIFORM, _RUN, _SCATTERED = range(3)
"""How the addresses of a request are related: all the same, consecutive in all 32 lanes, or neither."""
_MOST_BYTES = 1 << 31
"""Larger buffers are left to `translate_lanes`: offsets here are signed 32-bit numbers, as a CPU's gathers take."""
_LOCATED = "{ i64, i64, <32 x i32> }"


def global_accesses_ir() -> str:
    """All functions as LLVM IR."""
    others: Bodies = {
        "internal i64 @count_distinct(<32 x i32> %offsets) noinline": _distinct,
        f"internal {_LOCATED} @locate(i64 %ctx, i64 %warp, i64 %site, i64 %mask, i64 %size) noinline": _locate,
        f"i64 @sandbox_{TRANSLATE}(i64 %ctx, i64 %warp, i64 %site, i64 %space, i64 %mask, i64 %size)": _hosts,
    }
    return functions_ir(others | access_bodies(GLOBAL_LOADS, _load) | access_bodies(GLOBAL_STORES, _store))


def _shuffled(v: VectorIRBuilder, value: str, lanes: list[int]) -> str:
    order = ", ".join(f"i32 {lane}" for lane in lanes)
    return v.op(f"shufflevector <32 x i32> {value}, <32 x i32> poison, <32 x i32> <{order}>")


def _bits(v: VectorIRBuilder, predicate: str, a: str, b: str, element: str = "i32") -> str:
    return v.bits_of(v.compare(predicate, element, a, b))


def _locate(v: VectorIRBuilder) -> None:
    """A function that returns base address, pattern and offsets of a request; the base is 0 if it is not handled."""
    result = "poison"
    for number, (kind, value) in enumerate(zip(("i64", "i64", "<32 x i32>"), _located(v, "%size"))):
        result = v.op(f"insertvalue {_LOCATED} {result}, {kind} {value}, {number}")
    v.do(f"ret {_LOCATED} {result}")
    v.label("otherwise")
    v.do(f"ret {_LOCATED} zeroinitializer")


def _located(v: VectorIRBuilder, size_bytes: int | str) -> tuple[str, str, str]:
    """Find the buffer of a request, check bounds and alignment, and count. Returns base address, pattern and offsets.

    Continues at the label `otherwise`, and nothing is counted, if the request is not handled here. Inactive lanes have
    an active lane's offset: that of the first before it, that of the last behind it, so that ascending offsets remain
    ascending.
    """
    mask = v.op("trunc i64 %mask to i32")
    first_lane = v.first_lane(mask)
    first = v.op(f"load i64, ptr {_address_of(v, first_lane)}")
    buffer = v.op(f"sub i64 {v.op(f'lshr i64 {first}, {at.WINDOW_BITS}')}, {at.FIRST_BUFFER_WINDOW}")
    known = v.op(f"icmp ult i64 {buffer}, {slot(v, context.BUFFER_COUNT)}")
    untraced = v.op(f"icmp eq i64 {slot(v, context.TRACE_NEXT)}, 0")
    some = v.op(f"icmp ne i32 {mask}, 0")
    usual = v.op(f"and i1 {v.op(f'and i1 {known}, {untraced}')}, {some}")
    v.do(f"br i1 {usual}, label %buffer, label %otherwise")

    v.label("buffer")
    row = v.op(f"add i64 {slot(v, context.BUFFERS)}, {v.op(f'shl i64 {buffer}, 4')}")
    base = v.op(f"load i64, ptr {pointer(v, row, 0)}")
    limit = v.op(f"load i64, ptr {pointer(v, row, 8)}")
    last_offset = v.op(f"sub i64 {limit}, {size_bytes}")
    is_small = v.op(f"icmp ult i64 {last_offset}, {_MOST_BYTES}")  # false if it is negative
    # The offset is the lower half of an address; the upper half is the same for all addresses of a small buffer.
    low, high = (_halves(v, first) for first in (0, 1))
    buffer_number = v.op(f"trunc i64 {v.op(f'add i64 {buffer}, {at.FIRST_BUFFER_WINDOW}')} to i32")
    upper = v.op(f"or i32 {v.op(f'shl i32 {buffer_number}, {at.WINDOW_BITS - 32}')}, {at.BUFFER_START >> 32}")
    elsewhere = v.compare("ne", "i32", high, v.spread("i32", upper))
    beyond = v.compare("ugt", "i32", low, v.spread("i32", v.op(f"trunc i64 {last_offset} to i32")))
    outside = v.op(f"and i32 {v.bits_of(v.binary('or', 'i1', elsewhere, beyond))}, {mask}")
    inside = v.op(f"and i1 {is_small}, {v.op(f'icmp eq i32 {outside}, 0')}")
    v.do(f"br i1 {inside}, label %inside, label %otherwise")

    v.label("inside")
    head = v.op(f"trunc i64 {first} to i32")
    zeros = v.intrinsic("llvm.ctlz.i32", "i32", ("i32", mask), ("i1", "false"))
    last_address = _address_of(v, v.op(f"sub i32 31, {zeros}"))
    tail = v.op(f"trunc i64 {v.op(f'load i64, ptr {last_address}')} to i32")
    is_full = v.op(f"icmp eq i32 {mask}, -1")
    v.do(f"br i1 {is_full}, label %filled, label %partial")
    v.label("partial")
    lowest = v.op(f"and i32 {mask}, {v.op(f'sub i32 0, {mask}')}")
    before_first = v.lanes_of(v.op(f"sub i32 {lowest}, 1"))
    filler = v.select("i32", before_first, v.spread("i32", head), v.spread("i32", tail))
    partial = v.select("i32", v.lanes_of(mask), low, filler)
    v.do("br label %filled")
    v.label("filled")
    offsets = v.op(f"phi <32 x i32> [ {low}, %inside ], [ {partial}, %partial ]")
    size = v.op(f"trunc i64 {size_bytes} to i32")
    rest = v.binary("and", "i32", offsets, v.spread("i32", v.op(f"sub i32 {size}, 1")))
    misaligned = _bits(v, "ne", rest, splat("i32", 0))
    v.do(f"br i1 {v.op(f'icmp eq i32 {misaligned}, 0')}, label %aligned, label %otherwise")

    v.label("aligned")
    before = _shuffled(v, offsets, [0, *range(at.LANES - 1)])
    differ, sectors = _changes(v, offsets, before)
    rise = _bits(v, "ugt", offsets, before)
    v.do(f"br i1 {_is_sorted(v, differ, rise)}, label %sorted, label %unsorted")
    v.label("sorted")
    sorted_count = _packed(v, differ, sectors)
    v.do("br label %counted")
    # A block that is 16 threads wide often accesses a column: both halves of the warp the same, in order.
    v.label("unsorted")
    halves_differ = _bits(v, "ne", offsets, _shuffled(v, offsets, [*range(16, at.LANES), *range(16)]))
    half = [v.op(f"and i32 {bits}, {0xFFFE}") for bits in (differ, rise, sectors)]
    repeats = v.op(f"icmp eq i32 {halves_differ}, 0")
    is_column = v.op(f"and i1 {repeats}, {_is_sorted(v, half[0], half[1])}")
    v.do(f"br i1 {is_column}, label %column, label %any")
    v.label("column")
    column_count = _packed(v, half[0], half[2])
    v.do("br label %counted")
    v.label("any")
    any_count = v.op(f"call i64 @count_distinct(<32 x i32> {offsets})")
    v.do("br label %counted")

    v.label("counted")
    both = v.op(f"phi i64 [ {sorted_count}, %sorted ], [ {column_count}, %column ], [ {any_count}, %any ]")
    distinct_offsets, distinct_sectors = v.op(f"and i64 {both}, {0xFFFFFFFF}"), v.op(f"lshr i64 {both}, 32")
    unique_bytes = v.op(f"mul i64 {distinct_offsets}, {size_bytes}")
    requested = v.op(f"mul i64 {population(v, mask)}, {size_bytes}")
    add_counts(v, buffer, requested, distinct_sectors, unique_bytes)
    # Offsets are multiples of the size: if they ascend from lane to lane, and no further than that, all are in between.
    ascends = v.op(f"icmp eq i32 {v.op(f'and i32 {differ}, {rise}')}, -2")
    span = v.op(f"icmp eq i32 {v.op(f'sub i32 {tail}, {head}')}, {v.op(f'mul i32 {size}, {at.LANES - 1}')}")
    is_run = v.op(f"and i1 {is_full}, {v.op(f'and i1 {ascends}, {span}')}")
    is_uniform = v.op(f"icmp eq i32 {differ}, 0")
    pattern = v.op(f"select i1 {is_run}, i64 {_RUN}, i64 {_SCATTERED}")
    pattern = v.op(f"select i1 {is_uniform}, i64 {_UNIFORM}, i64 {pattern}")
    return base, pattern, offsets


def _halves(v: VectorIRBuilder, first: int) -> str:
    """The lower (0) or upper (1) halves of all addresses."""
    words = v.op(f"load <64 x i32>, ptr {pointer(v, '%warp', at.ADDRESSES)}, align 64")
    order = ", ".join(f"i32 {2 * lane + first}" for lane in range(at.LANES))
    return v.op(f"shufflevector <64 x i32> {words}, <64 x i32> poison, <32 x i32> <{order}>")


def _address_of(v: VectorIRBuilder, lane: str) -> str:
    return v.op(f"getelementptr i64, ptr {pointer(v, '%warp', at.ADDRESSES)}, i32 {lane}")


def _is_sorted(v: VectorIRBuilder, differ: str, rise: str) -> str:
    """Whether offsets ascend or descend, given where they differ from the lane before and where they are larger."""
    ascends, descends = v.op(f"icmp eq i32 {rise}, {differ}"), v.op(f"icmp eq i32 {rise}, 0")
    return v.op(f"or i1 {ascends}, {descends}")


def _packed(v: VectorIRBuilder, differ: str, sectors: str) -> str:
    """Numbers of distinct offsets and sectors, in the halves of an i64: one more than there are changes."""
    high = v.op(f"shl i64 {v.op(f'add i64 {population(v, sectors)}, 1')}, 32")
    return v.op(f"or i64 {high}, {v.op(f'add i64 {population(v, differ)}, 1')}")


def _distinct(v: VectorIRBuilder) -> None:
    """Number of distinct offsets, and in the upper half of distinct sectors, of offsets in any order."""
    ordered = _sorted(v, "%offsets")
    before = _shuffled(v, ordered, [0, *range(at.LANES - 1)])
    v.do(f"ret i64 {_packed(v, *_changes(v, ordered, before))}")


def _changes(v: VectorIRBuilder, offsets: str, before: str) -> tuple[str, str]:
    """Where offsets and sectors differ from those of the lane before."""
    five = splat("i32", 5)
    sectors = v.binary("lshr", "i32", offsets, five), v.binary("lshr", "i32", before, five)
    return _bits(v, "ne", offsets, before), _bits(v, "ne", *sectors)


def _sorted(v: VectorIRBuilder, values: str) -> str:
    """The values in ascending order, by a bitonic network (Batcher, 'Sorting networks', 1968)."""
    lanes, kind = range(at.LANES), vector("i32")
    for run in (2, 4, 8, 16, 32):
        distance = run // 2
        while distance:
            others = _shuffled(v, values, [lane ^ distance for lane in lanes])
            low, high = (
                v.intrinsic(f"llvm.{which}.v32i32", kind, (kind, values), (kind, others)) for which in ("umin", "umax")
            )
            take_low = sum(1 << lane for lane in lanes if bool(lane & run) == bool(lane & distance))
            values = v.select("i32", v.lanes_of(str(take_low)), low, high)
            distance //= 2
    return values


def _begin(v: VectorIRBuilder, size: int | str, inline: bool = False) -> tuple[str, str, str]:
    """`_located`, usually as a call of `locate`, which saves code."""
    if inline:
        return _located(v, size)
    located = v.op(f"call {_LOCATED} @locate(i64 %ctx, i64 %warp, i64 %site, i64 %mask, i64 {size})")
    base, pattern, offsets = (v.op(f"extractvalue {_LOCATED} {located}, {number}") for number in range(3))
    v.do(f"br i1 {v.op(f'icmp eq i64 {base}, 0')}, label %otherwise, label %found")
    v.label("found")
    return base, pattern, offsets


def _hosts(v: VectorIRBuilder) -> None:
    base, _, offsets = _begin(v, "%size")
    hosts = v.binary("add", "i64", v.cast("zext", "i32", offsets, "i64"), v.spread("i64", base))
    v.do(f"store <32 x i64> {hosts}, ptr {pointer(v, '%warp', at.HOSTS)}, align 64")
    v.do("ret i64 0")
    v.label("otherwise")
    v.do(f"ret i64 {call(v, 'translate_lanes')}")


def _first_place(v: VectorIRBuilder, base: str, offsets: str, within: int = 0) -> str:
    offset = v.widen(v.op(f"extractelement <32 x i32> {offsets}, i32 0"))
    return pointer(v, v.op(f"add i64 {base}, {offset}"), within)


def _load(v: VectorIRBuilder, shape: tuple[str, int]) -> None:
    element, count = shape
    item_bytes, kind = BITS[element] // 8, vector(element)
    base, pattern, offsets = _begin(v, item_bytes * count, inline=shape == _MOST_FREQUENT)
    v.do(f"switch i64 {pattern}, label %each [ i64 {_UNIFORM}, label %once i64 {_RUN}, label %run ]")
    v.label("once")
    for item in range(count):
        scalar = v.op(f"load {element}, ptr {_first_place(v, base, offsets, item * item_bytes)}, align {item_bytes}")
        v.do(f"store {kind} {v.spread(element, scalar)}, ptr {data(v, element, item)}, align 32")
    v.do("ret i64 0")
    v.label("run")
    all_items = f"<{at.LANES * count} x {element}>"
    whole = v.op(f"load {all_items}, ptr {_first_place(v, base, offsets)}, align {item_bytes}")
    for item in range(count):
        order = ", ".join(f"i32 {lane * count + item}" for lane in range(at.LANES))
        row = v.op(f"shufflevector {all_items} {whole}, {all_items} poison, <32 x i32> <{order}>")
        v.do(f"store {kind} {row}, ptr {data(v, element, item)}, align 32")
    v.do("ret i64 0")
    v.label("each")
    for item in range(count):
        place = pointer(v, base, item * item_bytes)
        v.do(f"store {kind} {gathered(v, element, place, offsets)}, ptr {data(v, element, item)}, align 32")
    v.do("ret i64 0")
    end(v, "gather", element, count)


def _store(v: VectorIRBuilder, shape: tuple[str, int]) -> None:
    element, count = shape
    item_bytes, kind = BITS[element] // 8, vector(element)
    base, pattern, offsets = _begin(v, item_bytes * count, inline=shape == _MOST_FREQUENT)
    rows = [v.op(f"load {kind}, ptr {data(v, element, item)}, align 32") for item in range(count)]
    v.do(f"br i1 {v.op(f'icmp eq i64 {pattern}, {_RUN}')}, label %run, label %each")
    v.label("run")
    whole, width = rows, at.LANES
    while len(whole) > 1:
        # Concatenate pairs of rows; the last shuffle below puts the elements in order.
        pairs = zip(whole[::2], whole[1::2])
        order = ", ".join(f"i32 {place}" for place in range(2 * width))
        part = f"<{width} x {element}>"
        whole = [v.op(f"shufflevector {part} {a}, {part} {b}, <{2 * width} x i32> <{order}>") for a, b in pairs]
        width *= 2
    (value,) = whole
    all_items = f"<{width} x {element}>"
    if count > 1:
        order = ", ".join(f"i32 {item * at.LANES + lane}" for lane in range(at.LANES) for item in range(count))
        value = v.op(f"shufflevector {all_items} {value}, {all_items} poison, <{width} x i32> <{order}>")
    v.do(f"store {all_items} {value}, ptr {_first_place(v, base, offsets)}, align {item_bytes}")
    v.do("ret i64 0")
    v.label("each")
    active = v.lanes_of(v.op("trunc i64 %mask to i32"))
    for item, row in enumerate(rows):
        scatter(v, element, row, pointer(v, base, item * item_bytes), offsets, active)
    v.do("ret i64 0")
    end(v, "scatter", element, count)
