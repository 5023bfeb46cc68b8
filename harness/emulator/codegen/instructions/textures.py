"""Emits reads of textures, and loads and stores of surfaces (PTX ISA 9.7.10, 9.7.11).

`memory/textures/sampling.py` samples.

A handle is in a 64-bit register, as CUDA passes texture and surface objects to kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.emulator.abi import layout as at
from harness.emulator.abi import texture_layout as tex
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instrumentation.watched import watch_accesses
from harness.emulator.codegen.vector_ir_builder import INTEGER, splat, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.emulator.memory.textures.surfaces import CLAMP, TRAP, ZERO
from harness.ptx.instructions import Address, Instruction, Operand, Reg, Vector
from harness.ptx.types import PtxType

_RESULTS = 4
_LAYER = 3
"""Row of the layer, after those of x, y and z."""
_DIRECTION = 3
"""Coordinates of a direction from the centre of a cube."""


@dataclass(frozen=True)
class _Geometry:
    """What an instruction says of a texture or surface."""

    dimensions: int
    coordinates: int
    """Coordinates without the layer's; more than dimensions for a cube."""
    layered: bool = False
    cube: bool = False

    @property
    def operands(self) -> tuple[int, ...]:
        """Possible numbers of registers: the layer's and the coordinates', padded to four if there are three."""
        used = self.coordinates + self.layered
        return (used, 4) if used == 3 else (used,)

    @property
    def bits(self) -> int:
        """As the runtime takes it."""
        return self.dimensions | tex.LAYERED * self.layered | tex.CUBE * self.cube


_GEOMETRIES = {
    "1d": _Geometry(1, 1), "2d": _Geometry(2, 2), "3d": _Geometry(3, 3),
    "a1d": _Geometry(1, 1, layered=True), "a2d": _Geometry(2, 2, layered=True),
    "cube": _Geometry(2, _DIRECTION, cube=True), "acube": _Geometry(2, _DIRECTION, layered=True, cube=True),
}  # fmt: skip
_SURFACES = ("1d", "2d", "3d", "a1d", "a2d")
_OUTSIDE = {"trap": TRAP, "zero": ZERO, "clamp": CLAMP}
_LEVELS = {"base": 0, "level": 1, "grad": 2}
"""How the level of detail is chosen, and the number of operands for that. A texture has one level."""


def _geometry(form: Form, instruction: Instruction, names: tuple[str, ...]) -> _Geometry:
    name = form.choice(*names)
    if name is None:
        raise instruction.unsupported("its geometry")
    return _GEOMETRIES[name]


def _handle_and_place(instruction: Instruction, operand: Operand, geometry: _Geometry) -> tuple[Reg, list[Operand]]:
    """The register of the handle, and the operands for x, y, z and the layer, as many as there are."""
    misfit = instruction.unsupported("its operands do not fit its form")
    if not isinstance(operand, Vector) or len(operand.items) != 2:
        raise misfit
    address, place = operand.items
    if not isinstance(address, Address) or address.offset or not isinstance(address.base, Reg):
        raise misfit
    items = place.items if isinstance(place, Vector) else (place,)
    if len(items) not in geometry.operands:
        raise misfit
    layer = items[0] if geometry.layered else None
    coordinates = list(items[geometry.layered :][: geometry.coordinates])
    return address.base, [*coordinates, *([layer] if layer is not None else [])]


def _store_place(lanes: WarpEmitter, geometry: _Geometry, handle: Reg, place: list[Operand], to: int) -> None:
    """Pass handles, and coordinates at an offset of the warp's memory, to the runtime."""
    lanes.warp_store(vector("i64"), lanes.use(handle, "i64"), at.ADDRESSES)
    for number, operand in enumerate(place):
        row = _LAYER if number == geometry.coordinates else number
        lanes.warp_store(vector("i32"), lanes.use(operand, "i32"), to + 4 * at.LANES * row)


@emits("tex", "tld4")
def sample(lanes: WarpEmitter, instruction: Instruction) -> None:
    """Emit tex.GEOMETRY.v4 and tld4.COMPONENT.2d.v4."""
    form = Form(instruction)
    component = form.choice("r", "g", "b", "a") if instruction.opcode == "tld4" else None
    level = form.choice(*_LEVELS) or "base" if instruction.opcode == "tex" else "base"
    geometry = _geometry(form, instruction, ("2d",) if instruction.opcode == "tld4" else tuple(_GEOMETRIES))
    is_vector = form.flag("v4")
    kinds = [kind.name for kind in form.types()]
    form.end()
    results, position = instruction.operands[:2]
    if not is_vector or len(kinds) != 2 or kinds[0] not in ("f32", "s32", "u32") or kinds[1] not in ("f32", "s32"):
        raise instruction.unsupported("its types")
    whole = kinds[1] == "s32"
    if whole and (geometry.cube or level != "base" or component):
        raise instruction.unsupported("integer coordinates")
    if (instruction.opcode == "tld4") != (component is not None) or len(instruction.operands) != 2 + _LEVELS[level]:
        raise instruction.unsupported("its operands do not fit its form")
    if not isinstance(results, Vector) or len(results.items) != _RESULTS:
        raise instruction.unsupported("its operands do not fit its form")
    handle, place = _handle_and_place(instruction, position, geometry)
    lanes.sampling = lanes.sampling or lanes.reserve(tex.SAMPLING_BYTES)
    _store_place(lanes, geometry, handle, place, lanes.sampling + tex.COORDINATES)
    bits = geometry.bits | tex.INTEGER_COORDINATES * whole
    if component is not None:
        bits |= tex.GATHER | "rgba".index(component) << tex.COMPONENT_AT
    mask = lanes.widen(lanes.active_bits())
    site, scratch = lanes.number(lanes.site(instruction)), lanes.number(lanes.sampling)
    failed = lanes.runtime("sample", "%ctx", "%warp", site, mask, str(bits), scratch)
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))
    if lanes.instruments.sanitizer:
        lanes.runtime("watch_texels", "%ctx", "%warp", site, mask, scratch)
    for number, item in enumerate(results.items):
        row = lanes.sampling + tex.COORDINATES + 4 * at.LANES * number
        lanes.put(item, lanes.warp_load(vector("i32"), row), "i32")


def _surface_form(instruction: Instruction) -> tuple[_Geometry, int, PtxType, int]:
    """Geometry, number of elements, their type, and what happens outside."""
    form = Form(instruction)
    if not form.flag("b"):
        raise instruction.unsupported("formatted accesses")
    geometry = _geometry(form, instruction, _SURFACES)
    count = {"v2": 2, "v4": 4}.get(form.choice("v2", "v4") or "", 1)
    outside = form.choice(*_OUTSIDE)
    kind = form.type("b8 b16 b32 b64")
    form.end()
    if outside is None or count * kind.size_bytes > 16:
        raise instruction.unsupported("its operands do not fit its form")
    return geometry, count, kind, _OUTSIDE[outside]


def _items(instruction: Instruction, operand: Operand, count: int) -> tuple[Operand, ...]:
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != count:
        raise instruction.unsupported("its operands do not fit its form")
    return items


def _translated(
    lanes: WarpEmitter, instruction: Instruction, position: Operand, geometry: _Geometry, size: int, outside: int
) -> str:
    """Check and count the access, and leave host addresses in the warp's state. Returns the mask of lanes inside."""
    handle, place = _handle_and_place(instruction, position, geometry)
    _store_place(lanes, geometry, handle, place, at.DATA)
    mask, site = lanes.widen(lanes.active_bits()), lanes.number(lanes.site(instruction))
    form = (str(geometry.bits), str(size), str(outside))
    inside = lanes.runtime("surface_addresses", "%ctx", "%warp", site, mask, *form)
    lanes.stop_if(lanes.op(f"icmp slt i64 {inside}, 0"))
    space = str(at.SPACES["written" if instruction.opcode == "sust" else "global"])
    failed = lanes.runtime("translate", "%ctx", "%warp", site, space, inside, str(size))
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))
    return inside


@emits("suld")
def load_surface(lanes: WarpEmitter, instruction: Instruction) -> None:
    """suld.b.GEOMETRY.TYPE.OUTSIDE to, [surface, {x, y, z}]."""
    geometry, count, kind, outside = _surface_form(instruction)
    items = _items(instruction, instruction.operands[0], count)
    shape, element = (str(kind.size_bytes), str(count)), INTEGER[kind.bits]
    position = instruction.operands[1]
    inside = _translated(lanes, instruction, position, geometry, count * kind.size_bytes, outside)
    rows = [at.DATA + number * at.LANES * kind.size_bytes for number in range(count)]
    for row in rows:
        lanes.warp_store(vector(element), splat(element, 0), row, 32)
    lanes.runtime("gather", "%warp", inside, *shape)
    watch_accesses(lanes, instruction, "global", inside, shape)
    for item, row in zip(items, rows):
        lanes.put(item, lanes.warp_load(vector(element), row, 32), element)


@emits("sust")
def store_surface(lanes: WarpEmitter, instruction: Instruction) -> None:
    """sust.b.GEOMETRY.TYPE.OUTSIDE [surface, {x, y, z}], values."""
    geometry, count, kind, outside = _surface_form(instruction)
    items = _items(instruction, instruction.operands[1], count)
    shape, element = (str(kind.size_bytes), str(count)), INTEGER[kind.bits]
    values = [lanes.use(item, element) for item in items]
    position = instruction.operands[0]
    inside = _translated(lanes, instruction, position, geometry, count * kind.size_bytes, outside)
    for number, value in enumerate(values):
        lanes.warp_store(vector(element), value, at.DATA + number * at.LANES * kind.size_bytes, 32)
    watch_accesses(lanes, instruction, "global", inside, shape)
    lanes.runtime("scatter", "%warp", inside, *shape)
