"""Emits operations across the lanes of a warp (PTX ISA 9.7.9.5 f., 9.7.13.6 ff.)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness.emulator.abi import layout as at
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.special_registers import LANE_ID
from harness.emulator.codegen.instrumentation.watched import watch_members, watch_sources
from harness.emulator.codegen.vector_ir_builder import INTEGER, splat, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import SINK, Imm, Instruction, Operand, Pair


def check_members(lanes: WarpEmitter, instruction: Instruction, members: Operand) -> None:
    """Fault if a lane's mask does not include itself, or includes lanes that have not exited but are on another path.

    The first is undefined; for the others a GPU would wait. Mask mismatches are left to the sanitizer.
    """
    watch_members(lanes, instruction, members)
    if not lanes.first_check_of(members):
        return
    active = lanes.active_bits()
    if isinstance(members, Imm):
        some = lanes.op(f"icmp ne i32 {active}, 0")
        mask = members.value & at.FULL_MASK
        named = lanes.op(f"select i1 {some}, i32 {mask}, i32 0")
        if mask != at.FULL_MASK:
            outside = lanes.op(f"and i32 {active}, {at.FULL_MASK & ~mask}")
            lanes.check(outside, "lane outside of its mask", instruction, str(mask))
    else:
        own = lanes.use(members, "i32")
        masks = lanes.select("i32", lanes.active(), own, splat("i32", 0))
        named = lanes.intrinsic("llvm.vector.reduce.or.v32i32", "i32", ("<32 x i32>", masks))
        itself = lanes.bits_of(lanes.cast("trunc", "i32", lanes.binary("lshr", "i32", own, LANE_ID), "i1"))
        outside = lanes.op(f"and i32 {active}, {lanes.op(f'xor i32 {itself}, -1')}")
        first = lanes.op(f"extractelement <32 x i32> {own}, i32 {lanes.first_lane(outside)}")
        lanes.check(outside, "lane outside of its mask", instruction, first)
    elsewhere = lanes.op(f"and i32 {staying_lanes(lanes)}, {lanes.op(f'xor i32 {active}, -1')}")
    waited_for = lanes.op(f"and i32 {named}, {elsewhere}")
    if lanes.instruments.lenient and instruction.opcode == "bar":
        lanes.runtime("note_absent", "%ctx", lanes.number(lanes.site(instruction)), lanes.widen(waited_for))
    else:
        lanes.check(waited_for, "divergent warp operation", instruction)


def staying_lanes(lanes: WarpEmitter) -> str:
    """The lanes that have not exited, as i32. Lanes whose remaining code only exits count as exited."""
    staying = lanes.warp_load("i32", at.ALIVE, 4)
    if lanes.ways_out:
        pcs = lanes.warp_load("<32 x i32>", at.PCS)
        for number in lanes.ways_out:
            leaving = lanes.bits_of(lanes.compare("eq", "i32", pcs, splat("i32", number)))
            # For running lanes, it is their previous location.
            staying = lanes.op(f"and i32 {staying}, {lanes.op(f'xor i32 {leaving}, -1')}")
    return staying


def check_whole_warp(lanes: WarpEmitter, instruction: Instruction) -> None:
    """Fault if an `.aligned` operation is not executed by all 32 lanes together."""
    if not lanes.first_check_of(None):
        return
    active = lanes.active_bits()
    some = lanes.op(f"icmp ne i32 {active}, 0")
    absent = lanes.op(f"select i1 {some}, i32 {lanes.op(f'xor i32 {active}, -1')}, i32 0")
    lanes.check(absent, "divergent warp operation", instruction)


@contextmanager
def where_some_run(lanes: WarpEmitter) -> Iterator[None]:
    """A context manager: the enclosed code is skipped if the predicate holds in no lane.

    It may not define registers.
    """
    if lanes.active_bits() == lanes.mask:
        yield
        return
    run, go_on = lanes.fresh_label("run"), lanes.fresh_label("ran")
    lanes.do(f"br i1 {lanes.op(f'icmp ne i32 {lanes.active_bits()}, 0')}, label %{run}, label %{go_on}")
    lanes.label(run)
    yield
    lanes.do(f"br label %{go_on}")
    lanes.label(go_on)


def _groups(lanes: WarpEmitter, instruction: Instruction, members: Operand) -> str:
    """For each lane, the mask of participating lanes, as i32.

    Lanes that run one instruction may have different masks.
    """
    check_members(lanes, instruction, members)
    active = lanes.spread("i32", lanes.active_bits())
    return lanes.binary("and", "i32", lanes.use(members, "i32"), active)


@emits("shfl")
def shuffle(lanes: WarpEmitter, instruction: Instruction) -> None:
    """shfl.sync.{up,down,bfly,idx}.b32 d[|p], a, b, c, membermask."""
    form = Form(instruction)
    if not form.flag("sync"):
        raise instruction.unsupported("shuffles without '.sync' are gone since sm_70")
    mode = form.choice("up", "down", "bfly", "idx")
    form.type("b32")
    form.end()
    if mode is None:
        raise instruction.unsupported()
    destination, a, b, c, members = instruction.operands
    check_members(lanes, instruction, members)
    if isinstance(b, Imm) and isinstance(c, Imm):
        sources = [_source_lane(mode, lane, b.value, c.value) for lane in range(32)]
        order = ", ".join(f"i32 {lane if source is None else source}" for lane, source in enumerate(sources))
        watch_sources(lanes, instruction, members, f"<{order}>")
        # Emitted before there is a value, which would be spilled at the branch.
        _note_absent_sources(lanes, instruction, f"<{order}>")
        value = _present_values(lanes, a)
        result = lanes.op(f"shufflevector <32 x i32> {value}, <32 x i32> poison, <32 x i32> <{order}>")
        valid = "<" + ", ".join(f"i1 {'false' if s is None else 'true'}" for s in sources) + ">"
    else:
        source, valid = _dynamic_sources(lanes, mode, lanes.use(b, "i32"), lanes.use(c, "i32"))
        watch_sources(lanes, instruction, members, source)
        _note_absent_sources(lanes, instruction, source)
        result = _permuted(lanes, _present_values(lanes, a), source)
    if isinstance(destination, Pair):
        lanes.put(destination.first, result, "i32")
        lanes.put(destination.second, valid, "i1")
    else:
        lanes.put(destination, result, "i32")


def _note_absent_sources(lanes: WarpEmitter, instruction: Instruction, sources: str) -> None:
    """Record that a lane reads one that does not execute the shuffle; `sources` is a vector of i32."""
    site, active = lanes.number(lanes.site(instruction)), lanes.active_bits()
    look, go_on = lanes.fresh_label("look"), lanes.fresh_label("looked")
    partial = lanes.op(f"icmp ne i32 {active}, {at.FULL_MASK}")
    lanes.do(f"br i1 {partial}, label %{look}, label %{go_on}, !prof !0")
    lanes.label(look)
    shifted = lanes.binary("lshr", "i32", lanes.spread("i32", active), sources)
    present = lanes.bits_of(lanes.cast("trunc", "i32", shifted, "i1"))
    absent = lanes.op(f"and i32 {active}, {lanes.op(f'xor i32 {present}, -1')}")
    lanes.runtime("note_absent", "%ctx", site, lanes.widen(absent))
    lanes.do(f"br label %{go_on}")
    lanes.label(go_on)


def _present_values(lanes: WarpEmitter, value: Operand) -> str:
    """The values that a shuffle reads: 0 in inactive lanes, as on a GPU. PTX leaves it undefined."""
    return lanes.select("i32", lanes.active(), lanes.use(value, "i32"), splat("i32", 0))


def _source_lane(mode: str, lane: int, b: int, c: int) -> int | None:
    """The lane that `lane` reads; None if that is outside its segment (PTX ISA, shfl.sync, pseudocode)."""
    b &= 31
    segment = c >> 8 & 31
    clamp = c & 31
    highest = (lane & segment) | (clamp & ~segment)
    lowest = lane & segment
    source, valid = {
        "up": (lane - b, lane - b >= highest),
        "down": (lane + b, lane + b <= highest),
        "bfly": (lane ^ b, (lane ^ b) <= highest),
        "idx": (lowest | (b & ~segment), (lowest | (b & ~segment)) <= highest),
    }[mode]
    return source if valid else None


def _dynamic_sources(lanes: WarpEmitter, mode: str, b: str, c: str) -> tuple[str, str]:
    """The source lanes of a shuffle for variable b and c: the lane itself if the source is outside its segment."""

    def both(word: str, x: str, y: str) -> str:
        return lanes.binary(word, "i32", x, y)

    b = both("and", b, splat("i32", 31))
    segment = both("and", both("lshr", c, splat("i32", 8)), splat("i32", 31))
    outside = both("xor", segment, splat("i32", -1))
    lowest = both("and", LANE_ID, segment)
    highest = both("or", lowest, both("and", both("and", c, splat("i32", 31)), outside))
    if mode == "up":
        source = both("sub", LANE_ID, b)
        valid = lanes.compare("sge", "i32", source, highest)
    else:
        if mode == "down":
            source = both("add", LANE_ID, b)
        elif mode == "bfly":
            source = both("xor", LANE_ID, b)
        else:
            source = both("or", lowest, both("and", b, outside))
        valid = lanes.compare("sle", "i32", source, highest)
    return lanes.select("i32", valid, source, LANE_ID), valid


def _permuted(lanes: WarpEmitter, value: str, source: str) -> str:
    lanes.warp_store("<32 x i32>", source, at.ADDRESSES)
    lanes.warp_store("<32 x i32>", value, at.DATA_2)
    lanes.runtime("permute", "%warp")
    return lanes.warp_load("<32 x i32>", at.DATA)


@emits("vote")
def vote(lanes: WarpEmitter, instruction: Instruction) -> None:
    """vote.sync.{all,any,uni}.pred and .ballot.b32."""
    form = Form(instruction)
    is_sync, mode = form.flag("sync"), form.choice("all", "any", "uni", "ballot")
    form.type("b32" if mode == "ballot" else "pred")
    form.end()
    if mode is None or not is_sync:
        raise instruction.unsupported()
    destination, predicate, members = instruction.operands
    group = _groups(lanes, instruction, members)
    bits = lanes.spread("i32", lanes.bits_of(lanes.use(predicate, "i1")))
    votes = lanes.binary("and", "i32", bits, group)
    if mode == "ballot":
        lanes.put(destination, votes, "i32")
        return
    everyone = lanes.compare("eq", "i32", votes, group)
    someone = lanes.compare("ne", "i32", votes, splat("i32", 0))
    nobody = lanes.binary("xor", "i1", someone, splat("i1", 1))
    answers = {"all": everyone, "any": someone, "uni": lanes.binary("or", "i1", everyone, nobody)}
    lanes.put(destination, answers[mode], "i1")


@emits("activemask")
def active_mask(lanes: WarpEmitter, instruction: Instruction) -> None:
    """activemask: the active lanes."""
    form = Form(instruction)
    form.type("b32")
    form.end()
    lanes.put(instruction.operands[0], lanes.spread("i32", lanes.active_bits()), "i32")


@emits("match")
def match(lanes: WarpEmitter, instruction: Instruction) -> None:
    """match.any.sync: the lanes with the same value; match.all.sync: all lanes, if all agree."""
    form = Form(instruction)
    is_sync, mode = form.flag("sync"), form.choice("any", "all")
    element = INTEGER[form.type("b32 b64").bits]
    form.end()
    destination, a, members = instruction.operands
    if mode is None or not is_sync or (mode == "any" and isinstance(destination, Pair)):
        raise instruction.unsupported()
    group = _groups(lanes, instruction, members)
    value = lanes.use(a, element)
    same = splat("i32", 0)
    for lane in range(at.LANES):
        scalar = lanes.op(f"extractelement {vector(element)} {value}, i32 {lane}")
        row = lanes.bits_of(lanes.compare("eq", element, value, lanes.spread(element, scalar)))
        same = lanes.op(f"insertelement <32 x i32> {same}, i32 {row}, i32 {lane}")
    found = lanes.binary("and", "i32", same, group)
    if mode == "any":
        lanes.put(destination, found, "i32")
        return
    agree = lanes.compare("eq", "i32", found, group)
    first, second = (destination.first, destination.second) if isinstance(destination, Pair) else (destination, SINK)
    lanes.put(first, lanes.select("i32", agree, group, splat("i32", 0)), "i32")
    lanes.put(second, agree, "i1")


_REDUCTIONS = {"add": "u32 s32", "min": "u32 s32 f32", "max": "u32 s32 f32", "and": "b32", "or": "b32", "xor": "b32"}
_FLOAT_NAN, _FLOAT_INFINITY, _FLOAT_SIGN = 0x7FFFFFFF, 0x7F800000, 0x80000000


@emits("redux")
def reduce(lanes: WarpEmitter, instruction: Instruction) -> None:
    """redux.sync: one integer, or the least or greatest f32, for all lanes of a group."""
    form = Form(instruction)
    is_sync, operation = form.flag("sync"), form.choice(*_REDUCTIONS)
    kind = form.type(_REDUCTIONS.get(operation or "", ""))
    absolute, nan = (kind.is_float and form.flag(word) for word in ("abs", "NaN"))
    form.end()
    if operation is None or not is_sync:
        raise instruction.unsupported()
    destination, a, members = instruction.operands
    if kind.is_float:
        groups, value = _groups(lanes, instruction, members), lanes.use(a, "i32")
        result = _for_each_group(
            lanes, groups, lambda group: _extreme_float(lanes, operation, value, group, absolute, nan)
        )
        lanes.put(destination, result, "i32")
        return
    groups = _groups(lanes, instruction, members)
    signed = kind.kind == "s"
    neutral = {"and": -1, "min": 0x7FFFFFFF if signed else -1, "max": 0x80000000 if signed else 0}.get(operation, 0)
    word = ("s" if signed else "u") + operation if operation in ("min", "max") else operation
    value = lanes.use(a, "i32")

    def of_group(group: str) -> str:
        taken = lanes.select("i32", lanes.lanes_of(group), value, splat("i32", neutral))
        name = f"llvm.vector.reduce.{word}.v32i32"
        return lanes.spread("i32", lanes.intrinsic(name, "i32", ("<32 x i32>", taken)))

    lanes.put(destination, _for_each_group(lanes, groups, of_group), "i32")


def _extreme_float(lanes: WarpEmitter, operation: str, value: str, group: str, absolute: bool, nan: bool) -> str:
    """The least or greatest f32 of a group, as bits: -0 is less than +0, and NaN counts only with `nan`.

    Bits of negative floats descend; with all but their sign flipped, all floats are ordered like signed integers.
    """
    magnitude = lanes.binary("and", "i32", value, splat("i32", _FLOAT_SIGN - 1))
    is_nan = lanes.compare("ugt", "i32", magnitude, splat("i32", _FLOAT_INFINITY))
    key = magnitude
    if not absolute:
        flipped = lanes.binary(
            "and", "i32", lanes.binary("ashr", "i32", value, splat("i32", 31)), splat("i32", _FLOAT_NAN)
        )
        key = lanes.binary("xor", "i32", value, flipped)
    # Beyond the infinities, so that a group of NaNs alone keeps it.
    neutral = _FLOAT_NAN if operation == "min" else _FLOAT_SIGN
    members = lanes.lanes_of(group)
    numbers = lanes.binary("and", "i1", members, lanes.binary("xor", "i1", is_nan, splat("i1", 1)))
    taken = lanes.select("i32", numbers, key, splat("i32", neutral))
    found = lanes.intrinsic(f"llvm.vector.reduce.s{operation}.v32i32", "i32", ("<32 x i32>", taken))
    sign = lanes.op(f"and i32 {lanes.op(f'ashr i32 {found}, 31')}, {_FLOAT_NAN}")
    some = lanes.bits_of(numbers)
    keeps = lanes.op(f"icmp ne i32 {some}, 0")
    if nan:
        lost = lanes.bits_of(lanes.binary("and", "i1", members, is_nan))
        keeps = lanes.op(f"and i1 {keeps}, {lanes.op(f'icmp eq i32 {lost}, 0')}")
    result = lanes.op(f"select i1 {keeps}, i32 {lanes.op(f'xor i32 {found}, {sign}')}, i32 {_FLOAT_NAN}")
    return lanes.spread("i32", result)


def _for_each_group(lanes: WarpEmitter, groups: str, of_group: Callable[[str], str]) -> str:
    """Loop over the groups of the active lanes; `of_group` computes a vector of i32 from a group's mask."""
    before, loop, after = (lanes.fresh_label(word) for word in ("before", "group", "after"))
    left, results = lanes.fresh_label("%left"), lanes.fresh_label("%results")
    next_left, next_results = lanes.fresh_label("%left"), lanes.fresh_label("%results")
    active = lanes.active_bits()
    lanes.do(f"br label %{before}")
    lanes.label(before)
    lanes.do(f"br label %{loop}")
    lanes.label(loop)
    lanes.do(f"{left} = phi i32 [ {active}, %{before} ], [ {next_left}, %{loop} ]")
    lanes.do(f"{results} = phi <32 x i32> [ zeroinitializer, %{before} ], [ {next_results}, %{loop} ]")
    # Every lane is in its own group, see `check_members`, so the loop ends.
    group = lanes.op(f"extractelement <32 x i32> {groups}, i32 {lanes.first_lane(left)}")
    result = of_group(group)
    lanes.do(f"{next_results} = select <32 x i1> {lanes.lanes_of(group)}, <32 x i32> {result}, <32 x i32> {results}")
    lanes.do(f"{next_left} = and i32 {left}, {lanes.op(f'xor i32 {group}, -1')}")
    lanes.do(f"br i1 {lanes.op(f'icmp ne i32 {next_left}, 0')}, label %{loop}, label %{after}")
    lanes.label(after)
    return next_results


@emits("elect")
def elect(lanes: WarpEmitter, instruction: Instruction) -> None:
    """elect.sync d|p, membermask: elects the lowest lane."""
    form = Form(instruction)
    is_sync = form.flag("sync")
    form.end()
    destination, members = instruction.operands
    if not is_sync or not isinstance(destination, Pair):
        raise instruction.unsupported()
    group = _groups(lanes, instruction, members)
    kind = vector("i32")
    leader = lanes.intrinsic("llvm.cttz.v32i32", kind, (kind, group), ("i1", "false"))
    lanes.put(destination.first, leader, "i32")
    lanes.put(destination.second, lanes.compare("eq", "i32", LANE_ID, leader), "i1")
