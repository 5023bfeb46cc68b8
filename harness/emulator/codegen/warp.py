"""Operations across the lanes of a warp (PTX ISA 9.7.9.5 f., 9.7.13.6 ff.)."""

from __future__ import annotations

from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.lane_tables import LANE_ID
from harness.emulator.codegen.lanes import Lanes
from harness.emulator.codegen.table import emits
from harness.emulator.codegen.vocabulary import INTEGER, splat, vector
from harness.emulator.machine import layout as at
from harness.emulator.ptx.instructions import Imm, Instruction, Operand, Pair


def check_members(lanes: Lanes, instruction: Instruction, members: Operand) -> None:
    """Fault where the mask names lanes that have not exited and are not here: on a GPU they would be waited for."""
    if not lanes.first_check_of(members):
        return
    value = lanes.use(members, "i32")
    named = _first_lane(lanes, value)
    alive = lanes.warp_load("i32", at.ALIVE, 4)
    absent = lanes.op(f"and i32 {alive}, {lanes.op(f'xor i32 {lanes.mask}, -1')}")
    some_active = lanes.op(f"icmp ne i32 {lanes.active_bits()}, 0")
    missing = lanes.op(f"select i1 {some_active}, i32 {lanes.op(f'and i32 {named}, {absent}')}, i32 0")
    lanes.check(missing, "divergent warp operation", instruction)


def _first_lane(lanes: Lanes, value: str) -> str:
    """The value in the lowest active lane, as a scalar i32."""
    lanes.declarations.add("declare i32 @llvm.cttz.i32(i32, i1)")
    first = lanes.op(f"call i32 @llvm.cttz.i32(i32 {lanes.active_bits()}, i1 false)")
    return lanes.op(f"extractelement <32 x i32> {value}, i32 {lanes.op(f'and i32 {first}, 31')}")


@emits("shfl")
def shuffle(lanes: Lanes, instruction: Instruction) -> None:
    """shfl.sync.{up,down,bfly,idx}.b32 d[|p], a, b, c, membermask."""
    form = Form(instruction)
    if not form.flag("sync"):
        raise instruction.unsupported("shuffles without '.sync' are gone since sm_70")
    mode = form.choice("up", "down", "bfly", "idx")
    form.type()
    form.end()
    destination, a, b, c, members = instruction.operands
    check_members(lanes, instruction, members)
    value = lanes.use(a, "i32")
    if isinstance(b, Imm) and isinstance(c, Imm):
        sources = [_source_lane(str(mode), lane, b.value, c.value) for lane in range(32)]
        order = ", ".join(f"i32 {lane if source is None else source}" for lane, source in enumerate(sources))
        result = lanes.op(f"shufflevector <32 x i32> {value}, <32 x i32> poison, <32 x i32> <{order}>")
        valid = "<" + ", ".join(f"i1 {'false' if s is None else 'true'}" for s in sources) + ">"
    else:
        result, valid = _dynamic_shuffle(lanes, str(mode), value, lanes.use(b, "i32"), lanes.use(c, "i32"))
    if isinstance(destination, Pair):
        lanes.put(destination.first, result, "i32")
        lanes.put(destination.second, valid, "i1")
    else:
        lanes.put(destination, result, "i32")


def _source_lane(mode: str, lane: int, b: int, c: int) -> int | None:
    """The lane that `lane` reads, or None where it is out of its segment (PTX ISA, shfl.sync, pseudocode)."""
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


def _dynamic_shuffle(lanes: Lanes, mode: str, value: str, b: str, c: str) -> tuple[str, str]:
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
    source = lanes.select("i32", valid, source, LANE_ID)
    lanes.warp_store("<32 x i32>", source, at.ADDRESSES)
    lanes.warp_store("<32 x i32>", value, at.DATA_2)
    lanes.runtime("permute", "%warp")
    return lanes.warp_load("<32 x i32>", at.DATA), valid


@emits("vote")
def vote(lanes: Lanes, instruction: Instruction) -> None:
    """vote.sync.{all,any,uni}.pred and .ballot.b32."""
    form = Form(instruction)
    form.flag("sync")
    mode = form.choice("all", "any", "uni", "ballot")
    form.type()
    form.end()
    destination, predicate, *members = instruction.operands
    if members:
        check_members(lanes, instruction, members[0])
    active = lanes.active_bits()
    bits = lanes.op(f"and i32 {lanes.bits_of(lanes.use(predicate, 'i1'))}, {active}")
    if mode == "ballot":
        lanes.put(destination, lanes.spread("i32", bits), "i32")
        return
    all_of = lanes.op(f"icmp eq i32 {bits}, {active}")
    none = lanes.op(f"icmp eq i32 {bits}, 0")
    if mode == "any":
        answer = lanes.op(f"xor i1 {none}, true")
    else:
        answer = all_of if mode == "all" else lanes.op(f"or i1 {all_of}, {none}")
    lanes.put(destination, lanes.spread("i1", answer), "i1")


@emits("activemask")
def active_mask(lanes: Lanes, instruction: Instruction) -> None:
    """The lanes that are here."""
    lanes.put(instruction.operands[0], lanes.spread("i32", lanes.active_bits()), "i32")


@emits("match")
def match(lanes: Lanes, instruction: Instruction) -> None:
    """match.sync.any: the lanes that hold the same value; .all: everyone, if all agree."""
    form = Form(instruction)
    form.flag("sync")
    mode = form.choice("any", "all")
    kind = form.type()
    form.end()
    destination, a, members = instruction.operands
    check_members(lanes, instruction, members)
    element = INTEGER[kind.bits]
    value, active = lanes.use(a, element), lanes.active_bits()
    if mode == "all":
        lanes.declarations.add("declare i32 @llvm.cttz.i32(i32, i1)")
        first = lanes.op(f"and i32 {lanes.op(f'call i32 @llvm.cttz.i32(i32 {active}, i1 false)')}, 31")
        scalar = lanes.op(f"extractelement {vector(element)} {value}, i32 {first}")
        differs = lanes.bits_of(lanes.compare("ne", element, value, lanes.spread(element, scalar)))
        agree = lanes.op(f"icmp eq i32 {lanes.op(f'and i32 {differs}, {active}')}, 0")
        answer = lanes.op(f"select i1 {agree}, i32 {active}, i32 0")
        target = destination.first if isinstance(destination, Pair) else destination
        lanes.put(target, lanes.spread("i32", answer), "i32")
        if isinstance(destination, Pair):
            lanes.put(destination.second, lanes.spread("i1", agree), "i1")
        return
    result = splat("i32", 0)
    for lane in range(32):
        scalar = lanes.op(f"extractelement {vector(element)} {value}, i32 {lane}")
        same = lanes.bits_of(lanes.compare("eq", element, value, lanes.spread(element, scalar)))
        row = lanes.op(f"and i32 {same}, {active}")
        result = lanes.op(f"insertelement <32 x i32> {result}, i32 {row}, i32 {lane}")
    lanes.put(destination, result, "i32")


_REDUCTIONS = {"add": "add", "and": "and", "or": "or", "xor": "xor", "min": "min", "max": "max"}


@emits("redux")
def reduce(lanes: Lanes, instruction: Instruction) -> None:
    """redux.sync: one integer from all lanes."""
    form = Form(instruction)
    form.flag("sync")
    operation = form.choice(*_REDUCTIONS)
    kind = form.type()
    form.end()
    if operation is None or kind.is_float:
        raise instruction.unsupported()
    destination, a, members = instruction.operands
    check_members(lanes, instruction, members)
    signed = kind.kind == "s"
    neutral = {"and": -1, "min": 0x7FFFFFFF if signed else -1, "max": 0x80000000 if signed else 0}.get(operation, 0)
    value = lanes.select("i32", lanes.active(), lanes.use(a, "i32"), splat("i32", neutral))
    word = ("s" if signed else "u") + operation if operation in ("min", "max") else operation
    name = f"llvm.vector.reduce.{word}.v32i32"
    lanes.put(destination, lanes.spread("i32", lanes.intrinsic(name, "i32", ("<32 x i32>", value))), "i32")


@emits("elect")
def elect(lanes: Lanes, instruction: Instruction) -> None:
    """elect.sync d|p, membermask: the lowest lane leads."""
    form = Form(instruction)
    form.flag("sync")
    form.end()
    destination, members = instruction.operands
    check_members(lanes, instruction, members)
    active = lanes.active_bits()
    lanes.declarations.add("declare i32 @llvm.cttz.i32(i32, i1)")
    leader = lanes.op(f"call i32 @llvm.cttz.i32(i32 {active}, i1 false)")
    assert isinstance(destination, Pair)
    lanes.put(destination.first, lanes.spread("i32", leader), "i32")
    lanes.put(destination.second, lanes.compare("eq", "i32", LANE_ID, lanes.spread("i32", leader)), "i1")
