"""Emits accesses of global memory as runtime functions: vector code for what most requests are like.

It handles requests whose active lanes are all inside one buffer; anything else, faults included, is left to
`memory.translation.translate_lanes`, which gives the same counts lane by lane. Loads and stores take the addresses as
an argument. Data is in DATA, but a load of one element per lane returns it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from harness.emulator.abi import context
from harness.emulator.abi import layout as at
from harness.emulator.codegen.functions.distinct_offsets import (
    COUNT_DISTINCT,
    SECTOR_BITS,
    bits_where,
    changes,
    packed_counts,
    shuffled,
)
from harness.emulator.codegen.functions.memory_requests import (
    SHAPES,
    Bodies,
    add_counts,
    call,
    data,
    functions_ir,
    gathered,
    handled,
    pointer,
    population,
    scatter,
    slot,
)
from harness.emulator.codegen.vector_ir_builder import BITS, VectorIRBuilder, splat, vector

GLOBAL_LOADS = {(element, count): f"load_global_{element}x{count}" for element, count in SHAPES}
"""Function by element type and number of elements per lane. It takes `ARGUMENTS`, and returns 1 on a fault, else 0; see
`result_of`. Other shapes use `translate`, and `memory.copies.gather` or `scatter`."""
GLOBAL_STORES = {(element, count): f"store_global_{element}x{count}" for element, count in SHAPES}
ARGUMENTS = ("i64 %ctx", "i64 %warp", "i64 %site", "i64 %space", "i64 %mask", "<32 x i64> %addresses")
TRANSLATE = "translate"
"""Function that leaves host addresses in HOSTS, of the addresses in ADDRESSES. It takes context, warp, site, code of
the space, mask and size."""
_MOST_FREQUENT = ("i32", 1)
_UNIFORM, _COLUMN, _GROUPED, _SCATTERED, _NOT_HANDLED = range(5)
"""How the addresses of a request are related: all the same; the same in both halves of the warp; the same in groups of
eight lanes; none of these. The last is for requests that are left to `translate_lanes`."""
_GROUP_LANES = 8
_MOST_BYTES = 1 << 31
"""Larger buffers are left to `translate_lanes`: offsets here are signed 32-bit numbers, as a CPU's gathers take."""
_LOCATED = "{ i64, <32 x i32> }"
_LOCATING = "i64 %ctx, i64 %warp, i64 %site, i64 %mask, i64 %size, <32 x i64> %addresses"


def global_accesses_ir() -> str:
    """All functions as LLVM IR."""
    others: Bodies = {
        f"internal {_LOCATED} @locate({_LOCATING}) noinline": _locate,
        f"i64 @sandbox_{TRANSLATE}(i64 %ctx, i64 %warp, i64 %site, i64 %space, i64 %mask, i64 %size)": _hosts,
    }
    accesses = {
        f"{result_of(name, shape)} @sandbox_{name}({', '.join(ARGUMENTS)})": partial(emit, shape=shape)
        for names, emit in ((GLOBAL_LOADS, _load), (GLOBAL_STORES, _store))
        for shape, name in names.items()
    }
    return functions_ir(others | accesses)


def result_of(name: str, shape: tuple[str, int]) -> str:
    """LLVM type of a function's result: whether it failed, and what a load of one element per lane has loaded."""
    element, count = shape
    return f"{{ i64, {vector(element)} }}" if count == 1 and name == GLOBAL_LOADS[shape] else "i64"


@dataclass(frozen=True)
class _Request:
    """Names of values: what is known of a request."""

    size_bytes: int | str
    """Bytes per lane, i64; a number if it is constant."""
    size: str
    """The same as i32."""
    mask: str
    is_full: str
    first: str
    """Address of the first active lane."""
    head: str
    """Offset of that lane."""
    upper: str
    """Upper half of all addresses of the buffer."""
    buffer: str
    base: str
    last_offset: str


def _request(v: VectorIRBuilder, size_bytes: int | str) -> _Request:
    """Find the buffer of the first active lane. Continues at `otherwise` if there is none of at most 2 GiB."""
    mask = v.op("trunc i64 %mask to i32")
    is_full = v.op(f"icmp eq i32 {mask}, -1")
    v.do(f"br i1 {is_full}, label %whole, label %masked")
    v.label("whole")
    lane_0 = v.op("extractelement <32 x i64> %addresses, i32 0")
    v.do("br label %request")
    v.label("masked")
    _store_addresses(v)
    first_active = v.op(f"load i64, ptr {_address_of(v, v.first_lane(mask))}")
    v.do("br label %request")
    v.label("request")
    first = v.op(f"phi i64 [ {lane_0}, %whole ], [ {first_active}, %masked ]")
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
    head = v.op(f"trunc i64 {first} to i32")
    size = v.op(f"trunc i64 {size_bytes} to i32")
    buffer_number = v.op(f"trunc i64 {v.op(f'add i64 {buffer}, {at.FIRST_BUFFER_WINDOW}')} to i32")
    upper = v.op(f"or i32 {v.op(f'shl i32 {buffer_number}, {at.WINDOW_BITS - 32}')}, {at.BUFFER_START >> 32}")
    v.do(f"br i1 {is_small}, label %small, label %otherwise")
    v.label("small")
    return _Request(size_bytes, size, mask, is_full, first, head, upper, buffer, base, last_offset)


def _find_run(v: VectorIRBuilder, request: _Request) -> None:
    """Count and continue at `run` if the addresses are consecutive in all 32 lanes; otherwise, continue at `mixed`."""
    first, head, size = request.first, request.head, request.size
    v.do(f"br i1 {request.is_full}, label %full, label %mixed")
    v.label("full")
    off_run = v.binary("xor", "i64", "%addresses", v.binary("add", "i64", v.spread("i64", first), _steps(v, size)))
    v.do(f"br i1 {_is_zero(v, off_run)}, label %consecutive, label %mixed")
    v.label("consecutive")
    start = v.op(f"zext i32 {head} to i64")
    tail = v.op(f"add i64 {start}, {v.op(f'mul i64 {request.size_bytes}, {at.LANES - 1}')}")
    fits = v.op(f"icmp ule i64 {tail}, {request.last_offset}")
    first_upper = v.op(f"trunc i64 {v.op(f'lshr i64 {first}, 32')} to i32")
    begins = v.op(f"icmp eq i32 {first_upper}, {request.upper}")
    rest = v.op(f"and i32 {head}, {v.op(f'sub i32 {size}, 1')}")
    is_valid = v.op(f"and i1 {v.op(f'and i1 {fits}, {begins}')}, {v.op(f'icmp eq i32 {rest}, 0')}")
    v.do(f"br i1 {is_valid}, label %valid, label %otherwise")
    v.label("valid")
    sectors = [v.op(f"lshr i64 {offset}, {SECTOR_BITS}") for offset in (start, tail)]
    count = v.op(f"add i64 {v.op(f'sub i64 {sectors[1]}, {sectors[0]}')}, 1")
    whole = v.op(f"mul i64 {request.size_bytes}, {at.LANES}")
    add_counts(v, request.buffer, whole, count, whole)
    v.do("br label %run")


def _find_pattern(v: VectorIRBuilder, request: _Request) -> tuple[str, str]:
    """Check bounds and alignment of any request, and count. Returns its pattern, and the lanes' offsets.

    Begins at the label `mixed`, and continues at the label `otherwise` if the request is not handled here. Inactive
    lanes have an active lane's offset: that of the first before it, that of the last behind it, so that ascending
    offsets remain ascending.
    """
    v.label("mixed")
    low, high = (_halves(v, first) for first in (0, 1))
    elsewhere = v.compare("ne", "i32", high, v.spread("i32", request.upper))
    beyond = v.compare("ugt", "i32", low, v.spread("i32", v.op(f"trunc i64 {request.last_offset} to i32")))
    outside = v.op(f"and i32 {v.bits_of(v.binary('or', 'i1', elsewhere, beyond))}, {request.mask}")
    v.do(f"br i1 {v.op(f'icmp eq i32 {outside}, 0')}, label %inside, label %otherwise")
    v.label("inside")
    v.do(f"br i1 {request.is_full}, label %filled, label %partial")
    v.label("partial")
    zeros = v.intrinsic("llvm.ctlz.i32", "i32", ("i32", request.mask), ("i1", "false"))
    last_address = _address_of(v, v.op(f"sub i32 31, {zeros}"))
    tail = v.op(f"trunc i64 {v.op(f'load i64, ptr {last_address}')} to i32")
    lowest = v.op(f"and i32 {request.mask}, {v.op(f'sub i32 0, {request.mask}')}")
    before_first = v.lanes_of(v.op(f"sub i32 {lowest}, 1"))
    filler = v.select("i32", before_first, v.spread("i32", request.head), v.spread("i32", tail))
    partial = v.select("i32", v.lanes_of(request.mask), low, filler)
    v.do("br label %filled")
    v.label("filled")
    offsets = v.op(f"phi <32 x i32> [ {low}, %inside ], [ {partial}, %partial ]")
    rest = v.binary("and", "i32", offsets, v.spread("i32", v.op(f"sub i32 {request.size}, 1")))
    misaligned = bits_where(v, "ne", rest, splat("i32", 0))
    v.do(f"br i1 {v.op(f'icmp eq i32 {misaligned}, 0')}, label %aligned, label %otherwise")

    v.label("aligned")
    before = shuffled(v, offsets, [0, *range(at.LANES - 1)])
    differ, sectors = changes(v, offsets, before)
    rise = bits_where(v, "ugt", offsets, before)
    v.do(f"br i1 {_is_sorted(v, differ, rise)}, label %sorted, label %unsorted")
    v.label("sorted")
    sorted_count = packed_counts(v, differ, sectors)
    v.do("br label %counted")
    # A block that is 16 threads wide often accesses a column: both halves of the warp the same, in order.
    v.label("unsorted")
    halves_differ = bits_where(v, "ne", offsets, shuffled(v, offsets, [*range(16, at.LANES), *range(16)]))
    half = [v.op(f"and i32 {bits}, {0xFFFE}") for bits in (differ, rise, sectors)]
    repeats = v.op(f"icmp eq i32 {halves_differ}, 0")
    is_column = v.op(f"and i1 {repeats}, {_is_sorted(v, half[0], half[1])}")
    v.do(f"br i1 {is_column}, label %repeated, label %any")
    v.label("repeated")
    column_count = packed_counts(v, half[0], half[2])
    v.do("br label %counted")
    v.label("any")
    v.declarations.add(f"declare i64 @{COUNT_DISTINCT}(<32 x i32>)")
    any_count = v.op(f"call i64 @{COUNT_DISTINCT}(<32 x i32> {offsets})")
    v.do("br label %counted")
    v.label("counted")
    both = v.op(f"phi i64 [ {sorted_count}, %sorted ], [ {column_count}, %repeated ], [ {any_count}, %any ]")
    pattern = v.op(f"phi i64 [ {_SCATTERED}, %sorted ], [ {_COLUMN}, %repeated ], [ {_SCATTERED}, %any ]")
    within_groups = sum(1 << lane for lane in range(at.LANES) if lane % _GROUP_LANES)
    is_grouped = v.op(f"icmp eq i32 {v.op(f'and i32 {differ}, {within_groups}')}, 0")
    pattern = v.op(f"select i1 {is_grouped}, i64 {_GROUPED}, i64 {pattern}")
    pattern = v.op(f"select i1 {v.op(f'icmp eq i32 {differ}, 0')}, i64 {_UNIFORM}, i64 {pattern}")
    distinct, distinct_sectors = v.op(f"and i64 {both}, {0xFFFFFFFF}"), v.op(f"lshr i64 {both}, 32")
    requested = v.op(f"mul i64 {population(v, request.mask)}, {request.size_bytes}")
    add_counts(v, request.buffer, requested, distinct_sectors, v.op(f"mul i64 {distinct}, {request.size_bytes}"))
    return pattern, offsets


def _locate(v: VectorIRBuilder) -> None:
    """A function that returns pattern and offsets of a request that is not a run."""
    request = _request(v, "%size")
    v.do("br label %mixed")
    pattern, offsets = _find_pattern(v, request)
    result = v.op(f"insertvalue {_LOCATED} poison, i64 {pattern}, 0")
    v.do(f"ret {_LOCATED} {v.op(f'insertvalue {_LOCATED} {result}, <32 x i32> {offsets}, 1')}")
    v.label("otherwise")
    v.do(f"ret {_LOCATED} {{ i64 {_NOT_HANDLED}, <32 x i32> zeroinitializer }}")


def _begin(v: VectorIRBuilder, size_bytes: int | str, inline: bool = False) -> tuple[_Request, str, str]:
    """Check and count. Returns the request, and pattern and offsets if it is not a run.

    A run continues at the label `run`. `inline` saves the call of `locate`, which saves code.
    """
    request = _request(v, size_bytes)
    _find_run(v, request)
    if inline:
        return request, *_find_pattern(v, request)
    v.label("mixed")
    arguments = _LOCATING.replace("%size", str(size_bytes))
    located = v.op(f"call {_LOCATED} @locate({arguments})")
    pattern, offsets = (v.op(f"extractvalue {_LOCATED} {located}, {number}") for number in range(2))
    v.do(f"br i1 {v.op(f'icmp eq i64 {pattern}, {_NOT_HANDLED}')}, label %otherwise, label %found")
    v.label("found")
    return request, pattern, offsets


_NUMBERS = "<" + ", ".join(f"i64 {lane}" for lane in range(at.LANES)) + ">"


def _steps(v: VectorIRBuilder, size: str) -> str:
    """Each lane's number times the size, a power of two, as i64."""
    shift = v.intrinsic("llvm.cttz.i32", "i32", ("i32", size), ("i1", "true"))
    return v.binary("shl", "i64", _NUMBERS, v.spread("i64", v.widen(shift)))


def _is_zero(v: VectorIRBuilder, values: str) -> str:
    """Whether 32 numbers of 64 bits are all 0."""
    width = at.LANES
    while width > 8:
        width //= 2
        kind = f"<{2 * width} x i64>"
        parts = []
        for first in (0, width):
            order = ", ".join(f"i32 {first + place}" for place in range(width))
            parts.append(v.op(f"shufflevector {kind} {values}, {kind} poison, <{width} x i32> <{order}>"))
        values = v.op(f"or <{width} x i64> {', '.join(parts)}")
    some = v.op(f"bitcast <8 x i1> {v.op(f'icmp ne <8 x i64> {values}, zeroinitializer')} to i8")
    return v.op(f"icmp eq i8 {some}, 0")


def _store_addresses(v: VectorIRBuilder) -> None:
    v.do(f"store <32 x i64> %addresses, ptr {pointer(v, '%warp', at.ADDRESSES)}, align 64")


def _halves(v: VectorIRBuilder, first: int) -> str:
    """The lower (0) or upper (1) halves of all addresses."""
    words = v.op("bitcast <32 x i64> %addresses to <64 x i32>")
    order = ", ".join(f"i32 {2 * lane + first}" for lane in range(at.LANES))
    return v.op(f"shufflevector <64 x i32> {words}, <64 x i32> poison, <32 x i32> <{order}>")


def _address_of(v: VectorIRBuilder, lane: str) -> str:
    return v.op(f"getelementptr i64, ptr {pointer(v, '%warp', at.ADDRESSES)}, i32 {lane}")


def _is_sorted(v: VectorIRBuilder, differ: str, rise: str) -> str:
    """Whether offsets ascend or descend, given where they differ from the lane before and where they are larger."""
    ascends, descends = v.op(f"icmp eq i32 {rise}, {differ}"), v.op(f"icmp eq i32 {rise}, 0")
    return v.op(f"or i1 {ascends}, {descends}")


def _hosts(v: VectorIRBuilder) -> None:
    place = pointer(v, "%warp", at.ADDRESSES)
    v.do(f"%addresses = load <32 x i64>, ptr {place}, align 64")
    request, _, _ = _begin(v, "%size")
    v.do("br label %run")
    v.label("run")
    # All active lanes are in one buffer, and only the lower halves of their addresses differ.
    upper = v.op(f"and i64 {request.first}, {0xFFFFFFFF << 32}")
    hosts = v.binary("add", "i64", "%addresses", v.spread("i64", v.op(f"sub i64 {request.base}, {upper}")))
    v.do(f"store <32 x i64> {hosts}, ptr {pointer(v, '%warp', at.HOSTS)}, align 64")
    v.do("ret i64 0")
    v.label("otherwise")
    v.do(f"ret i64 {call(v, 'translate_lanes')}")


def _place(v: VectorIRBuilder, base: str, offset: str, within: int = 0) -> str:
    return pointer(v, v.op(f"add i64 {base}, {v.widen(offset)}"), within)


def _load(v: VectorIRBuilder, shape: tuple[str, int]) -> None:
    element, count = shape
    item_bytes, kind = BITS[element] // 8, vector(element)
    request, pattern, offsets = _begin(v, item_bytes * count, inline=shape == _MOST_FREQUENT)
    base = request.base
    labels = {_UNIFORM: "once", _COLUMN: "column", _GROUPED: "grouped"}
    cases = " ".join(f"i64 {number}, label %{label}" for number, label in labels.items())
    v.do(f"switch i64 {pattern}, label %each [ {cases} ]")

    result = result_of(GLOBAL_LOADS[shape], shape)

    def finish(rows: Iterator[str], failed: str = "0") -> None:
        for item, row in enumerate(rows):
            if count == 1:
                whole = v.op(f"insertvalue {result} poison, i64 {failed}, 0")
                v.do(f"ret {result} {v.op(f'insertvalue {result} {whole}, {kind} {row}, 1')}")
                return
            v.do(f"store {kind} {row}, ptr {data(v, element, item)}, align 32")
        v.do("ret i64 0")

    def loaded(lane: int, item: int) -> str:
        offset = v.op(f"extractelement <32 x i32> {offsets}, i32 {lane}")
        return v.op(f"load {element}, ptr {_place(v, base, offset, item * item_bytes)}, align {item_bytes}")

    v.label("once")
    finish(v.spread(element, loaded(0, item)) for item in range(count))
    v.label("run")
    all_items = f"<{at.LANES * count} x {element}>"
    whole = v.op(f"load {all_items}, ptr {_place(v, base, request.head)}, align {item_bytes}")
    finish(
        shuffled(v, whole, [lane * count + item for lane in range(at.LANES)], f"{at.LANES * count} x {element}")
        for item in range(count)
    )
    v.label("column")
    half = shuffled(v, offsets, list(range(16)))
    finish(
        shuffled(
            v, gathered(v, element, pointer(v, base, item * item_bytes), half, 16), [*range(16)] * 2, f"16 x {element}"
        )
        for item in range(count)
    )
    v.label("grouped")
    finish(
        _groups(v, element, [loaded(lane, item) for lane in range(0, at.LANES, _GROUP_LANES)]) for item in range(count)
    )
    v.label("each")
    finish(gathered(v, element, pointer(v, base, item * item_bytes), offsets) for item in range(count))
    failed = _handle_all(v, "gather", element, count)
    if count > 1:
        v.do(f"ret i64 {failed}")
    else:
        finish(iter([v.op(f"load {kind}, ptr {data(v, element, 0)}, align 32")]), failed)


def _handle_all(v: VectorIRBuilder, copy: str, element: str, count: int) -> str:
    """Emit the label `otherwise`: leave the request to functions that handle all of them. Returns whether it failed."""
    v.label("otherwise")
    _store_addresses(v)
    return handled(v, copy, element, count)


def _groups(v: VectorIRBuilder, element: str, scalars: list[str]) -> str:
    """32 lanes of which each group has one of the scalars."""
    kind = f"{len(scalars)} x {element}"
    row = "poison"
    for number, scalar in enumerate(scalars):
        row = v.op(f"insertelement <{kind}> {row}, {element} {scalar}, i32 {number}")
    return shuffled(v, row, [lane // _GROUP_LANES for lane in range(at.LANES)], kind)


def _store(v: VectorIRBuilder, shape: tuple[str, int]) -> None:
    element, count = shape
    item_bytes, kind = BITS[element] // 8, vector(element)
    request, _, offsets = _begin(v, item_bytes * count, inline=shape == _MOST_FREQUENT)
    base = request.base
    v.do("br label %each")

    def rows() -> list[str]:
        return [v.op(f"load {kind}, ptr {data(v, element, item)}, align 32") for item in range(count)]

    v.label("run")
    whole, width = rows(), at.LANES
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
    v.do(f"store {all_items} {value}, ptr {_place(v, base, request.head)}, align {item_bytes}")
    v.do("ret i64 0")
    v.label("each")
    active = v.lanes_of(v.op("trunc i64 %mask to i32"))
    for item, row in enumerate(rows()):
        scatter(v, element, row, pointer(v, base, item * item_bytes), offsets, active)
    v.do("ret i64 0")
    v.do(f"ret i64 {_handle_all(v, 'scatter', element, count)}")
