"""Emits loads and stores (PTX ISA 9.7.9.8 ff.).

Shared memory has a fast path (`shared_loads`), since inner loops use it. All other spaces go through the runtime's
`translate`, which checks bounds and alignment and counts sectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.emulator.abi import layout as at
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.functions.global_accesses import ARGUMENTS, GLOBAL_LOADS, GLOBAL_STORES, result_of
from harness.emulator.codegen.functions.local_accesses import LOCAL_LOADS, LOCAL_STORES
from harness.emulator.codegen.functions.shared_loads import SHARED_LOADS
from harness.emulator.codegen.instrumentation.watched import watch_memory, watch_shared
from harness.emulator.codegen.vector_ir_builder import BITS, INTEGER, splat, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Address, Instruction, Operand, Symbol, Vector
from harness.ptx.opcodes import ATOMIC, LOAD
from harness.ptx.types import PtxType

# Caching, ordering and scope have no effect here, since warps take turns.
_HINTS = (
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "volatile", "weak", "relaxed", "acquire", "release", "cta",
    "cluster", "gpu", "sys", "mmio", "unified",
)  # fmt: skip
STATE_SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry")
WIDEST_BYTES = 32
"""Bytes per lane of the widest accesses of global memory, which `sm_100` has: rows of `DATA` and `DATA_2`."""
_TYPES = "b8 u8 s8 b16 u16 s16 f16 bf16 b32 u32 s32 f32 f16x2 bf16x2 b64 u64 s64 f64 b128"


@dataclass(frozen=True)
class Access:
    """One load or store: address, width and registers."""

    space: str
    kind: PtxType
    items: tuple[Operand, ...]
    address: Address

    @property
    def size_bytes(self) -> int:
        """Bytes per lane."""
        return self.kind.size_bytes * len(self.items)

    @property
    def shape(self) -> tuple[str, str]:
        """Bytes of one element in memory, and number of elements, as the runtime needs them."""
        element, count = self.parts
        return str(BITS[element] // 8), str(count)

    @property
    def element(self) -> str:
        """LLVM type of one item."""
        return INTEGER[self.kind.total_bits]

    @property
    def parts(self) -> tuple[str, int]:
        """LLVM type and number of the elements that are moved; 128 bits are moved as two halves."""
        return ("i64", 2) if self.element == "i128" else (self.element, len(self.items))


def _read_form(lanes: WarpEmitter, instruction: Instruction, address: Operand, value: Operand) -> Access:
    form = Form(instruction)
    for hint in _HINTS:
        form.flag(hint)
    for modifier in form.rest():
        if modifier.startswith(("L1::", "L2::")) and modifier != "L2::cache_hint":
            form.flag(modifier)
    if form.flag("L2::cache_hint") != (len(instruction.operands) == 3):
        raise instruction.unsupported("its operands do not fit its form")
    space = form.choice(*STATE_SPACES) or "generic"
    count = {"v2": 2, "v4": 4, "v8": 8}.get(form.choice("v2", "v4", "v8") or "", 1)
    kind = form.type(_TYPES)
    form.end()
    items = value.items if isinstance(value, Vector) else (value,)
    is_misfit = kind.bits == 128 and not lanes.has_128_bits(value)
    if len(items) != count or not isinstance(address, Address) or is_misfit:
        raise instruction.unsupported("its operands do not fit its form")
    access = Access(space if space == "shared::cluster" else space.partition("::")[0], kind, items, address)
    if access.size_bytes > (WIDEST_BYTES if access.space == "global" else 16):
        raise instruction.unsupported("accesses wider than 16 bytes")
    return access


def generic_addresses(lanes: WarpEmitter, operand: Operand, space: str) -> str:
    """Generic i64 addresses for an address in any state space, including other blocks' shared memory."""
    if not space.startswith("shared"):
        return lanes.address(operand)
    offsets = lanes.cast("zext", "i32", lanes.address(operand, "i32"), "i64")
    return lanes.binary("or", "i64", offsets, splat("i64", at.SHARED_ADDRESS))


def store_addresses(lanes: WarpEmitter, addresses: str) -> None:
    """Pass 64-bit addresses to the runtime."""
    lanes.warp_store(vector("i64"), addresses, at.ADDRESSES)


def translate(lanes: WarpEmitter, instruction: Instruction, space: str, addresses: str, size_bytes: int) -> str:
    """Check and count an access, and leave host addresses in the warp's state. Returns the active mask as i64."""
    store_addresses(lanes, addresses)
    mask = lanes.widen(lanes.active_bits())
    site = lanes.number(lanes.site(instruction))
    if space == "generic" and instruction.facts.memory is not ATOMIC:
        count_shared(lanes, instruction, mask, size_bytes, generic=True)
    failed = lanes.runtime("translate", "%ctx", "%warp", site, _code(instruction, space), mask, str(size_bytes))
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))
    return mask


def _at_once(lanes: WarpEmitter, space: str, access: Access, loads: bool) -> str | None:
    """The function that translates and copies in one step; None if other code needs the host addresses in between."""
    counts_banks = space == "generic" and lanes.instruments.bank_conflicts
    if space not in ("global", "generic", "local") or lanes.instruments.sanitizer or counts_banks:
        return None
    if space == "local":
        functions = LOCAL_LOADS if loads else LOCAL_STORES
    else:
        functions = GLOBAL_LOADS if loads else GLOBAL_STORES
    return functions.get(access.parts)


def _access_at_once(
    lanes: WarpEmitter, instruction: Instruction, access: Access, function: str, space: str, addresses: str
) -> str | None:
    """Call the function. Returns what it has loaded, unless that is in DATA."""
    mask = lanes.widen(lanes.active_bits())
    arguments = ["%ctx", "%warp", lanes.number(lanes.site(instruction)), _code(instruction, space), mask]
    if space == "local":
        store_addresses(lanes, addresses)
        failed, loaded = lanes.runtime(function, *arguments), None
    else:
        result = result_of(function, access.parts)
        lanes.called.add(function)
        kinds = [argument.rsplit(" ", 1)[0] for argument in ARGUMENTS]
        lanes.declarations.add(f"declare {result} @sandbox_{function}({', '.join(kinds)})")
        given = ", ".join(f"{kind} {value}" for kind, value in zip(kinds, [*arguments, addresses]))
        failed, loaded = lanes.op(f"call {result} @sandbox_{function}({given})"), None
        if result != "i64":
            failed, loaded = (lanes.op(f"extractvalue {result} {failed}, {number}") for number in range(2))
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))
    return loaded


def _code(instruction: Instruction, space: str) -> str:
    """The state space as the runtime needs it."""
    return str(at.SPACES["written" if space in ("generic", "global") and _stores(instruction) else space])


def _stores(instruction: Instruction) -> bool:
    memory = instruction.facts.memory
    return memory is not None and memory.in_global in ("store", "atomic")


def count_shared(lanes: WarpEmitter, instruction: Instruction, mask: str, size_bytes: int, generic: bool) -> None:
    """Count the wavefronts of an access whose addresses the runtime has, if the kernel is compiled for it."""
    if lanes.instruments.bank_conflicts:
        flags = (str(int(generic)), str(int(_fills_registers(instruction))))
        site = lanes.number(lanes.site(instruction))
        lanes.runtime("count_shared", "%ctx", "%warp", site, mask, str(size_bytes), *flags)


def _fills_registers(instruction: Instruction) -> bool:
    """Whether equal lanes shorten a request, see `memory/banks.py`."""
    return instruction.facts.memory is LOAD


def _read_data(lanes: WarpEmitter, element: str, count: int) -> list[str]:
    row_bytes = at.LANES * BITS[element] // 8
    return [lanes.warp_load(vector(element), at.DATA + i * row_bytes, 32) for i in range(count)]


def _write_data(lanes: WarpEmitter, access: Access, values: list[str]) -> None:
    element, _ = access.parts
    for index, value in enumerate(values):
        lanes.warp_store(vector(element), value, at.DATA + index * at.LANES * BITS[element] // 8, 32)


@emits("ld", "ldu")
def load(lanes: WarpEmitter, instruction: Instruction) -> None:
    """ld, from any state space."""
    destination, address = instruction.operands[:2]  # a third is a cache policy
    access = _read_form(lanes, instruction, address, destination)
    if access.space == "param" and isinstance(access.address.base, Symbol):
        values = _load_parameter(lanes, instruction, access)
    elif access.space == "shared":
        offsets = lanes.own_offsets(access.address)
        values = _whole(lanes, access, load_shared(lanes, instruction, offsets, *access.parts))
    else:
        space, addresses = _translated(lanes, access)
        loaded = None
        function = _at_once(lanes, space, access, loads=True)
        if function is None:
            mask = translate(lanes, instruction, space, addresses, access.size_bytes)
            lanes.runtime("gather", "%warp", mask, *access.shape)
            watch_memory(lanes, instruction, space, mask, access.shape)
        else:
            loaded = _access_at_once(lanes, instruction, access, function, space, addresses)
        values = _whole(lanes, access, [loaded] if loaded else _read_data(lanes, *access.parts))
    for item, value in zip(access.items, values):
        lanes.put(item, value, access.element, signed=access.kind.kind == "s")


def _whole(lanes: WarpEmitter, access: Access, parts: list[str]) -> list[str]:
    """The items that these elements form."""
    if access.element != "i128":
        return parts
    low, high = (lanes.cast("zext", "i64", part, "i128") for part in parts)
    return [lanes.binary("or", "i128", low, lanes.binary("shl", "i128", high, splat("i128", 64)))]


def _halves(lanes: WarpEmitter, access: Access, values: list[str]) -> list[str]:
    """The elements that form these items."""
    if access.element != "i128":
        return values
    (whole,) = values
    high = lanes.binary("lshr", "i128", whole, splat("i128", 64))
    return [lanes.cast("trunc", "i128", half, "i64") for half in (whole, high)]


def _translated(lanes: WarpEmitter, access: Access) -> tuple[str, str]:
    """Space and addresses for the runtime; another block's shared memory has generic addresses."""
    if access.space == "shared::cluster":
        return "generic", generic_addresses(lanes, access.address, access.space)
    addresses = lanes.address(access.address)
    if access.space != "param":
        return access.space, addresses
    # An offset is relative to the kernel's parameters; parameters of functions are in local memory, with generic
    # addresses.
    is_offset = lanes.compare("ult", "i64", addresses, splat("i64", 1 << at.WINDOW_BITS))
    generic = lanes.binary("or", "i64", addresses, splat("i64", at.PARAM_WINDOW << at.WINDOW_BITS))
    return "generic", lanes.select("i64", is_offset, generic, addresses)


def _load_parameter(lanes: WarpEmitter, instruction: Instruction, access: Access) -> list[str]:
    base = access.address.base
    assert isinstance(base, Symbol)
    if base.name not in lanes.storage.parameters:
        raise instruction.unsupported(f"'{base.name}' is not a parameter of the kernel")
    offset = lanes.storage.parameters[base.name] + access.address.offset
    block = lanes.op(f"inttoptr i64 {lanes.slot('PARAMS')} to ptr")
    values = []
    for index in range(len(access.items)):
        number = lanes.number(offset + index * access.kind.size_bytes)
        place = lanes.op(f"getelementptr i8, ptr {block}, i64 {number}")
        values.append(lanes.spread(access.element, lanes.op(f"load {access.element}, ptr {place}, align 1")))
    return values


def load_shared(lanes: WarpEmitter, instruction: Instruction, offsets: str, element: str, count: int) -> list[str]:
    """Load `count` elements of LLVM type `element` for each active lane, at its offset in the block's shared memory."""
    item_bytes = BITS[element] // 8
    shape = str(item_bytes), str(count)
    lanes.warp_store(vector("i32"), offsets, at.ADDRESSES)
    mask = lanes.widen(lanes.active_bits())
    site = lanes.number(lanes.site(instruction))
    count_shared(lanes, instruction, mask, item_bytes * count, generic=False)
    function = SHARED_LOADS.get((element, count))
    if function is not None:
        failed = lanes.runtime(function, "%ctx", "%warp", site, mask)
    else:
        failed = lanes.runtime("shared_load", "%ctx", "%warp", site, mask, *shape)
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))
    values = _read_data(lanes, element, count)
    watch_shared(lanes, instruction, mask, shape)
    return values


@emits("st")
def store(lanes: WarpEmitter, instruction: Instruction) -> None:
    """st, to any state space."""
    address, value = instruction.operands[:2]
    access = _read_form(lanes, instruction, address, value)
    if access.space in ("const", "param"):
        raise instruction.unsupported()
    values = _halves(lanes, access, [lanes.use(item, access.element) for item in access.items])
    if access.space == "shared":
        offsets = lanes.own_offsets(access.address)
        lanes.warp_store(vector("i32"), offsets, at.ADDRESSES)
        _write_data(lanes, access, values)
        mask = lanes.widen(lanes.active_bits())
        site = lanes.number(lanes.site(instruction))
        count_shared(lanes, instruction, mask, access.size_bytes, generic=False)
        watch_shared(lanes, instruction, mask, access.shape)
        failed = lanes.runtime("shared_store", "%ctx", "%warp", site, mask, *access.shape)
        lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))
        return
    space, addresses = _translated(lanes, access)
    function = _at_once(lanes, space, access, loads=False)
    if function is not None:
        _write_data(lanes, access, values)
        _access_at_once(lanes, instruction, access, function, space, addresses)
        return
    mask = translate(lanes, instruction, space, addresses, access.size_bytes)
    _write_data(lanes, access, values)
    watch_memory(lanes, instruction, space, mask, access.shape)
    lanes.runtime("scatter", "%warp", mask, *access.shape)


@emits("prefetch", "prefetchu", "discard", "applypriority")
def prefetch(lanes: WarpEmitter, instruction: Instruction) -> None:
    """Prefetches, which have no effect that a kernel can observe."""


@emits("createpolicy")
def create_policy(lanes: WarpEmitter, instruction: Instruction) -> None:
    """createpolicy: all policies are 0, since cache policies have no effect that a kernel can observe."""
    form = Form(instruction)
    if form.choice("fractional", "range", "cvt") is None:
        raise instruction.unsupported()
    form.flag("global")
    for modifier in form.rest():
        if modifier == "L2" or modifier.startswith("L2::evict_"):
            form.flag(modifier)
    form.type("b64")
    form.end()
    lanes.put(instruction.operands[0], splat("i64", 0), "i64")
