"""Emits Blackwell's products, their copies and shifts, and commits (PTX ISA 9.7.16.9, 9.7.16.10 and 9.7.16.12).

`memory/tensor_memory/operations.py` implements them. A single thread issues such an operation; each active lane
issues its own.
"""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.asynchronous.mbarriers import SHARED_SPACES
from harness.emulator.codegen.instructions.memory import generic_addresses
from harness.emulator.codegen.matrix.column_products import COLUMN_PRODUCTS
from harness.emulator.codegen.matrix.tensor_memory import take_pair
from harness.emulator.codegen.vector_ir_builder import vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.emulator.memory.tensor_memory import descriptors as products
from harness.emulator.memory.tensor_memory import operations
from harness.ptx.instructions import Address, Imm, Instruction, Operand, Vector

_KINDS = {
    "kind::f16": (tensor.F16, (("f16", "f32"), ("bf16", "f32"), ("f16", "f16"))),
    "kind::tf32": (tensor.TF32, (("tf32", "f32"),)),
    "kind::f8f6f4": (tensor.F8F6F4, (("fp8", "f32"), ("fp8", "f16"))),
    "kind::i8": (tensor.I8, (("int8", "s32"),)),
    "kind::mxf8f6f4": (tensor.MXF8F6F4, (("mxfp8", "f32"),)),
    "kind::mxf4": (tensor.MXF4, (("mxfp4", "f32"),)),
    "kind::mxf4nvf4": (tensor.MXF4NVF4, (("mxfp4", "f32"),)),
}
"""By kind: its number, and its products in the order of the runtime's arguments."""
_SCALES: dict[str, dict[str | None, int]] = {
    "kind::mxf8f6f4": {None: 1, "scale_vec::1X": 1, "block32": 1},
    "kind::mxf4": {None: 2, "scale_vec::2X": 2, "block32": 2},
    "kind::mxf4nvf4": {"scale_vec::2X": 2, "block32": 2, "scale_vec::4X": 4, "block16": 4},
}
"""By kind, for products with block scaling: the scales of each row of A, by the size of their vector."""
_SCALE_SIZES = ("scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32")
_FORMATS = {None: 0, "b6x16_p32": 6, "b4x16_p64": 4}
"""Bits of the elements that a copy unpacks, by its source format."""
_COLLECTORS = ("fill", "use", "lastuse", "discard")
_COLLECTOR_WORDS = tuple(
    f"collector::{buffer}::{use}" for buffer in ("a", "b0", "b1", "b2", "b3") for use in _COLLECTORS
)
_COPIES = {
    ("128x256b", None): (products.CP_128X256, 8), ("4x256b", None): (products.CP_4X256, 8),
    ("128x128b", None): (products.CP_128X128, 4), ("64x128b", "warpx2::02_13"): (products.CP_64X128_02_13, 4),
    ("64x128b", "warpx2::01_23"): (products.CP_64X128_01_23, 4), ("32x128b", "warpx4"): (products.CP_32X128, 4),
}  # fmt: skip
"""By shape and multicast: the number of the shape, and its columns."""


def _issue(lanes: WarpEmitter, instruction: Instruction, function: str, *more: str) -> None:
    mask = lanes.widen(lanes.active_bits())
    failed = lanes.runtime(function, "%ctx", "%warp", lanes.number(lanes.site(instruction)), mask, *more)
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))


def _store_address(lanes: WarpEmitter, operand: Operand) -> None:
    lanes.warp_store(vector("i32"), lanes.address(operand, "i32"), at.ADDRESSES)


@emits("tcgen05.mma")
def multiply(lanes: WarpEmitter, instruction: Instruction) -> None:
    """tcgen05.mma{.ws}.cta_group.kind{.collector} [d], a, b, descriptor, {disabled lanes,} whether to add {, scale}.

    tcgen05.mma.cta_group.kind.block_scale{.size}{.collector} [d], a, b, descriptor, [scales], [scales], whether to add.
    """
    form = Form(instruction)
    form.flag("mma")
    stationary = form.flag("ws")
    pair = take_pair(form, instruction)
    kind = form.choice(*_KINDS)
    scaled, size = form.flag("block_scale"), form.choice(*_SCALE_SIZES)
    collector = form.choice(*_COLLECTOR_WORDS)
    if collector is not None and collector.startswith("collector::a") == stationary:
        raise instruction.unsupported(f"modifier '.{collector}'")
    form.end()
    operands = list(instruction.operands)
    if kind is None or (stationary and pair):
        raise instruction.unsupported("there is no such kind of product")
    number, functions = _KINDS[kind]
    if scaled != (kind in _SCALES) or (size is not None and not scaled):
        raise instruction.unsupported("kinds that begin with 'mx' need '.block_scale', and others do not have it")
    if scaled and stationary:
        raise instruction.unsupported("'.ws' does not have block scaling")
    scales = _scales(instruction, kind, size) if scaled else 0
    if len(operands) < 5 + 2 * scaled:
        raise instruction.unsupported("its operands do not fit its form")
    d, a, b, descriptor, *rest = operands
    addresses, rest = rest[: 2 * scaled], rest[2 * scaled :]
    if not all(isinstance(operand, Address) for operand in addresses) or (scaled and len(rest) != 1):
        raise instruction.unsupported("its operands do not fit its form")
    disabled = rest[0] if isinstance(rest[0], Vector) else None
    if disabled is not None:
        rest = rest[1:]
    scale = _scale(instruction, kind, stationary, rest)
    if disabled is not None and (stationary or len(disabled.items) != (8 if pair else 4)):
        raise instruction.unsupported("its operands do not fit its form")
    word = number << tensor.FORM_KIND | pair << tensor.FORM_PAIR | int(isinstance(a, Address)) << tensor.FORM_TENSOR_A
    word |= int(stationary) << tensor.FORM_STATIONARY | scale << tensor.FORM_SCALE
    word |= int(disabled is not None) << tensor.FORM_DISABLED | scales << tensor.FORM_BLOCKS
    _store_address(lanes, d)
    of_a = lanes.cast("zext", "i32", lanes.address(a, "i32"), "i64") if isinstance(a, Address) else lanes.use(a, "i64")
    lanes.warp_store(vector("i64"), of_a, operations.VALUES_A)
    lanes.warp_store(vector("i64"), lanes.use(b, "i64"), operations.VALUES_B)
    lanes.warp_store(vector("i32"), lanes.use(descriptor, "i32"), operations.VALUES_I)
    for row, item in enumerate(disabled.items if disabled is not None else ()):
        lanes.warp_store(vector("i32"), lanes.use(item, "i32"), operations.VALUES_LANES + 128 * row)
    for row, address in enumerate(addresses):
        lanes.warp_store(vector("i32"), lanes.address(address, "i32"), operations.VALUES_LANES + 128 * row)
    names = [COLUMN_PRODUCTS[product].name for product in functions]
    for name in names:
        lanes.declarations.add(f"declare void @sandbox_{name}(i64)")
        lanes.called.add(name)
    places = [f"ptrtoint (ptr @sandbox_{name} to i64)" for name in names] + ["0"] * (3 - len(names))
    _issue(lanes, instruction, "issue_tensor_product", _mask_of(lanes, rest[0]), str(word), *places)


def _scales(instruction: Instruction, kind: str, size: str | None) -> int:
    """The scales of each row of A, for a product with block scaling."""
    sizes = _SCALES[kind]
    if size not in sizes:
        raise instruction.unsupported(f"'.{kind}' takes {' or '.join(f'.{word}' for word in sizes if word)}")
    return sizes[size]


def _scale(instruction: Instruction, kind: str, stationary: bool, rest: list[Operand]) -> int:
    """The operand after the predicate: the power of two by which D is divided, 0 without one."""
    if len(rest) == 1:
        return 0
    if not rest:
        raise instruction.unsupported("its operands do not fit its form")
    if stationary:
        raise instruction.unsupported("a mask of columns that are zero")
    scale = rest[1]
    if len(rest) != 2 or kind not in ("kind::f16", "kind::tf32") or not isinstance(scale, Imm):
        raise instruction.unsupported("its operands do not fit its form")
    if scale.value not in range(16):
        raise instruction.unsupported("it divides D by 2 to the power of 0 to 15")
    return scale.value


def _mask_of(lanes: WarpEmitter, adds: Operand) -> str:
    """The lanes in which a predicate, or a literal, holds, as i64."""
    if isinstance(adds, Imm):
        return str(at.FULL_MASK if adds.value else 0)
    return lanes.widen(lanes.bits_of(lanes.use(adds, "i1")))


@emits("tcgen05.cp")
def copy(lanes: WarpEmitter, instruction: Instruction) -> None:
    """tcgen05.cp.cta_group.shape{.multicast}{.b8x16.format} [d], descriptor."""
    form = Form(instruction)
    form.flag("cp")
    pair = take_pair(form, instruction)
    shape = form.choice(*(shape for shape, _ in _COPIES))
    multicast = form.choice("warpx2::02_13", "warpx2::01_23", "warpx4")
    unpacks, source = form.flag("b8x16"), form.choice("b6x16_p32", "b4x16_p64")
    form.end()
    if unpacks != (source is not None):
        raise instruction.unsupported("'.b8x16' and the format of the source belong together")
    if shape is None or (shape, multicast) not in _COPIES:
        raise instruction.unsupported("there is no such combination of shape and multicast")
    number, width = _COPIES[shape, multicast]
    d, descriptor = instruction.operands
    _store_address(lanes, d)
    lanes.warp_store(vector("i64"), lanes.use(descriptor, "i64"), operations.VALUES_A)
    _issue(lanes, instruction, "issue_tensor_copy", str(number | pair << 8 | _FORMATS[source] << 9), str(width))


@emits("tcgen05.shift")
def shift(lanes: WarpEmitter, instruction: Instruction) -> None:
    """tcgen05.shift.cta_group.down [d]."""
    form = Form(instruction)
    form.flag("shift")
    pair = take_pair(form, instruction)
    if not form.flag("down"):
        raise instruction.unsupported("it needs '.down'")
    form.end()
    _store_address(lanes, instruction.operands[0])
    _issue(lanes, instruction, "issue_tensor_shift", str(pair))


@emits("tcgen05.commit")
def commit(lanes: WarpEmitter, instruction: Instruction) -> None:
    """tcgen05.commit.cta_group.mbarrier::arrive::one{.shared::cluster}{.multicast::cluster}.b64 [place] {, blocks}."""
    form = Form(instruction)
    form.flag("commit")
    pair = take_pair(form, instruction)
    arrives = form.flag("mbarrier::arrive::one")
    space = form.choice(*SHARED_SPACES)
    multicasts = form.flag("multicast::cluster")
    form.type("b64")
    form.end()
    place, *receivers = instruction.operands
    if not arrives or len(receivers) != multicasts:
        raise instruction.unsupported("its operands do not fit its form")
    lanes.warp_store(vector("i64"), generic_addresses(lanes, place, space or "generic"), at.ADDRESSES)
    if receivers:
        lanes.warp_store(vector("i32"), lanes.use(receivers[0], "i32"), at.RECEIVERS)
    _issue(lanes, instruction, "issue_tensor_commit", str(pair), str(int(multicasts)))
