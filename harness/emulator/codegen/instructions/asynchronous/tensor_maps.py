"""Emits instructions that modify tensor maps (PTX ISA 9.7.9.28, 9.7.13.16); `memory/tensor_map_fields.py` does so."""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import layout as at
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.memory import generic_addresses, load_shared, store_addresses, translate
from harness.emulator.codegen.instructions.special_registers import LANE_ID
from harness.emulator.codegen.instructions.warp import staying_lanes
from harness.emulator.codegen.instrumentation.watched import watch_memory, watch_modified_map
from harness.emulator.codegen.vector_ir_builder import splat, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Address, Imm, Instruction

_WIDE = ("global_address", "global_stride")
_BY_DIMENSION = ("box_dim", "global_dim", "global_stride", "element_stride")
_ELEMENT_TYPES = {
    0: "uint8", 1: "uint16", 2: "uint32", 3: "int32", 4: "uint64", 5: "int64", 6: "float16", 7: "float32", 9: "float64",
    10: "bfloat16", 13: "b4x16", 14: "b4x16_p64", 15: "b6x16_p32",
}  # fmt: skip
"""Names in `MAP_TYPES` by the instruction's number."""
_MOST = {"interleave_layout": 0, "swizzle_mode": 3, "swizzle_atomicity": 0, "fill_mode": 1}
_WORD_BYTES = 4


@emits("tensormap.replace")
def replace_field(lanes: WarpEmitter, instruction: Instruction) -> None:
    """tensormap.replace.tile.FIELD{.global, .shared::cta}.b1024.TYPE [map], {dimension,} value."""
    form = Form(instruction)
    words = form.flag("replace"), form.flag("tile"), form.flag("b1024")
    field = form.choice(*proxy.MAP_FIELDS)
    space = form.choice("global", "shared::cta") or "generic"
    is_wide = form.type("b32 b64").bits == 64
    form.end()
    address, *dimension, value = instruction.operands
    if field is None or not all(words) or is_wide != (field in _WIDE) or len(dimension) != (field in _BY_DIMENSION):
        raise instruction.unsupported("its operands do not fit its form")
    last = proxy.MAP_DIMENSIONS - 1 - (field == "global_stride")
    if dimension and not (isinstance(dimension[0], Imm) and 0 <= dimension[0].value <= last):
        raise instruction.unsupported(f"a dimension that is no constant from 0 to {last}")
    element = "i64" if is_wide else "i32"
    if field == "elemtype":
        name = _ELEMENT_TYPES.get(value.value) if isinstance(value, Imm) else None
        if name is None:
            raise instruction.unsupported("this type of elements")
        values = splat("i32", proxy.MAP_TYPES.index(name))
    else:
        if field in _MOST and not (isinstance(value, Imm) and 0 <= value.value <= _MOST[field]):
            raise instruction.unsupported(f"a value that is no constant from 0 to {_MOST[field]}")
        values = lanes.use(value, element)
    wide = lanes.cast("zext", element, values, "i64")
    if not isinstance(address, Address):
        raise instruction.unsupported("its operands do not fit its form")
    addresses = generic_addresses(lanes, address, space)
    store_addresses(lanes, addresses)
    mask = lanes.widen(lanes.active_bits())
    site = lanes.number(lanes.site(instruction))
    code = str(at.SPACES["written" if space != "shared::cta" else "shared"])
    failed = lanes.runtime("translate_map", "%ctx", "%warp", site, code, mask)
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))
    where = "shared" if space == "shared::cta" else space
    watch_memory(lanes, instruction, where, mask, (str(_WORD_BYTES), str(proxy.MAP_BYTES // _WORD_BYTES)))
    lanes.warp_store(vector("i64"), wide, at.DATA)
    number = lanes.number(proxy.MAP_FIELDS.index(field))
    place = lanes.number(dimension[0].value if dimension and isinstance(dimension[0], Imm) else 0)
    failed = lanes.runtime("replace_field", "%ctx", "%warp", site, mask, number, place)
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))
    if space != "shared::cta":
        watch_modified_map(lanes, instruction, mask)


@emits("tensormap.cp_fenceproxy")
def copy_map(lanes: WarpEmitter, instruction: Instruction) -> None:
    """tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.SCOPE.sync.aligned [to], [from], 128.

    Each lane copies four bytes.
    """
    form = Form(instruction)
    flags = ("cp_fenceproxy", "global", "shared::cta", "tensormap::generic", "release", "sync", "aligned")
    words = [form.flag(word) for word in flags]
    scope = form.choice("cta", "cluster", "gpu", "sys")
    form.end()
    to, source, size = instruction.operands
    if not all(words) or scope is None or not isinstance(size, Imm) or size.value != proxy.MAP_BYTES:
        raise instruction.unsupported("its operands do not fit its form")
    active = lanes.active_bits()
    some = lanes.op(f"icmp ne i32 {active}, 0")
    missing = lanes.op(f"and i32 {staying_lanes(lanes)}, {lanes.op(f'xor i32 {active}, -1')}")
    lanes.check(lanes.op(f"select i1 {some}, i32 {missing}, i32 0"), "divergent warp operation", instruction)
    steps = lanes.binary("mul", "i32", LANE_ID, splat("i32", _WORD_BYTES))
    offsets = lanes.binary("add", "i32", lanes.own_offsets(source), steps)
    (words_of_map,) = load_shared(lanes, instruction, offsets, "i32", 1)
    addresses = lanes.binary("add", "i64", lanes.address(to), lanes.cast("zext", "i32", steps, "i64"))
    mask = translate(lanes, instruction, "global", addresses, _WORD_BYTES)
    lanes.warp_store(vector("i32"), words_of_map, at.DATA)
    shape = (str(_WORD_BYTES), "1")
    watch_memory(lanes, instruction, "global", mask, shape)
    lanes.runtime("scatter", "%warp", mask, *shape)
    watch_modified_map(lanes, instruction, lanes.op(f"and i64 {mask}, 1"))  # the first lane has the map's address
