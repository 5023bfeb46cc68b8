"""Emits cp{.reduce}.async.bulk{.tensor} (PTX ISA 9.7.9.25.4 f.); `memory/bulk_copies.py` implements them."""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import layout as at
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.functions.reductions import BETWEEN_BLOCKS, TYPES, function_of, functions_by_tensor_type
from harness.emulator.codegen.instructions.memory import generic_addresses
from harness.emulator.codegen.vector_ir_builder import INTEGER, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Address, Imm, Instruction, Operand, Vector

_DIMENSIONS = {f"{n}d": n for n in range(1, 6)}
_TO_SHARED = ("shared::cluster", "shared::cta")


@emits("cp.bulk_group")
def group(lanes: WarpEmitter, instruction: Instruction) -> None:
    """cp.async.bulk.commit_group; cp.async.bulk.wait_group{.read} n."""
    form = Form(instruction)
    if not (form.flag("async") and form.flag("bulk")):
        raise instruction.unsupported()
    waits = form.choice("commit_group", "wait_group") == "wait_group"
    if waits:
        # A store that has been read lands at once: no kernel can observe when it does.
        form.flag("read")
    form.end()
    mask = lanes.widen(lanes.active_bits())
    if not waits:
        if instruction.operands:
            raise instruction.unsupported("it has no operands")
        lanes.runtime("commit_bulk", "%ctx", mask)
        return
    if len(instruction.operands) != 1 or not isinstance(instruction.operands[0], Imm):
        raise instruction.unsupported("it waits until a constant number of groups is left")
    lanes.runtime("wait_for_bulk", "%ctx", mask, str(instruction.operands[0].value))


@emits("cp.bulk_prefetch")
def prefetch(lanes: WarpEmitter, instruction: Instruction) -> None:
    """cp.async.bulk.prefetch{.tensor.Nd}.L2.global: a hint without an effect that a kernel can observe."""
    form, _ = _begin(instruction)
    words = form.flag("prefetch"), form.flag("L2"), form.flag("global")
    _operands(instruction, form)
    if not all(words):
        raise instruction.unsupported()


@emits("cp.bulk_load")
def load(lanes: WarpEmitter, instruction: Instruction) -> None:
    """cp.async.bulk{.tensor.Nd}.shared.global{.multicast::cluster}{.cta_group}.

    Operands: [to], from {, bytes}, [mbarrier] {, blocks}. With `.cta_group::2`, the mbarrier may also be in the
    other block of the destination's pair.
    """
    form, rank = _begin(instruction)
    space, from_global = form.choice(*_TO_SHARED), form.flag("global")
    completes = form.flag("mbarrier::complete_tx::bytes")
    is_multicast = form.flag("multicast::cluster")
    group = form.choice("cta_group::1", "cta_group::2") if rank else None
    operands = _operands(instruction, form)
    if space is None or not from_global or not completes or (is_multicast and space == "shared::cta"):
        raise instruction.unsupported("its operands do not fit its form")
    if len(operands) != (3 if rank else 4) + is_multicast:
        raise instruction.unsupported("its operands do not fit its form")
    direction = proxy.OWN_BLOCK if space == "shared::cta" else 0
    if is_multicast:
        direction = proxy.MULTICAST
        lanes.warp_store(vector("i32"), lanes.use(operands.pop(), "i32"), at.RECEIVERS)
    if group == "cta_group::2":
        direction |= proxy.TO_PAIR
    to, source, *size, barrier = operands
    lanes.warp_store(vector("i64"), generic_addresses(lanes, barrier, "shared"), at.DATA + 256)
    _issue(lanes, instruction, to, source, size, rank, direction)


@emits("cp.bulk_between")
def between_blocks(lanes: WarpEmitter, instruction: Instruction) -> None:
    """cp{.reduce}.async.bulk.shared::cluster.shared::cta{.OP.TYPE}: [to], [from], bytes, [mbarrier]."""
    form, rank = _begin(instruction)
    words = form.flag("shared::cluster"), form.flag("shared::cta"), form.flag("mbarrier::complete_tx::bytes")
    function = "0"
    if form.flag("reduce"):
        operation = form.choice(*BETWEEN_BLOCKS)
        if operation is None:
            raise instruction.unsupported()
        function = _table(lanes, [function_of(operation, form.type(BETWEEN_BLOCKS[operation]).name)])
    form.end()
    if rank or not all(words) or len(instruction.operands) != 4:
        raise instruction.unsupported("its operands do not fit its form")
    to, source, size, barrier = instruction.operands
    lanes.warp_store(vector("i64"), generic_addresses(lanes, barrier, "shared"), at.DATA + 256)
    _issue(lanes, instruction, to, source, [size], 0, proxy.TO_OTHER_BLOCK, function)


@emits("st.async", "red.async")
def store_value(lanes: WarpEmitter, instruction: Instruction) -> None:
    """st.async{.weak}{.vec}.TYPE, red.async.relaxed.cluster.OP.TYPE: [to], value, [mbarrier].

    Both accept `.shared::cluster` and `.mbarrier::complete_tx::bytes`, which are defaults in the ISA but required by
    ptxas.
    """
    form = Form(instruction)
    form.flag("async")
    space = form.choice("shared::cluster") or "generic"
    completes = form.flag("mbarrier::complete_tx::bytes")
    function, count = "0", 1
    if instruction.opcode == "red":
        words = form.flag("relaxed"), form.flag("cluster")
        operation = form.choice(*BETWEEN_BLOCKS)
        if operation is None or not all(words):
            raise instruction.unsupported()
        kind = form.type(BETWEEN_BLOCKS[operation])
        name = function_of(operation, kind.name)
        lanes.called.add(name)
        lanes.declarations.add(f"declare void @sandbox_{name}(i64)")
        function = f"ptrtoint (ptr @sandbox_{name} to i64)"
    else:
        form.flag("weak")
        form.flag("cluster")
        count = {"v2": 2, "v4": 4}.get(form.choice("v2", "v4") or "", 1)
        kind = form.type("b32 u32 s32 f32 b64 u64 s64 f64")
    form.end()
    to, value, barrier = instruction.operands
    items = value.items if isinstance(value, Vector) else (value,)
    if not completes or len(items) != count or count * kind.size_bytes > 16:
        raise instruction.unsupported("its operands do not fit its form")
    lanes.warp_store(vector("i64"), generic_addresses(lanes, to, space), at.ADDRESSES)
    lanes.warp_store(vector("i64"), generic_addresses(lanes, barrier, space), at.HOSTS)
    element = INTEGER[kind.total_bits]
    for index, item in enumerate(items):
        lanes.warp_store(vector(element), lanes.use(item, element), at.DATA + index * at.LANES * kind.size_bytes, 32)
    mask, site = lanes.widen(lanes.active_bits()), lanes.number(lanes.site(instruction))
    shape = (str(kind.size_bytes), str(count))
    failed = lanes.runtime("issue_value", "%ctx", "%warp", site, mask, *shape, function)
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))


@emits("cp.bulk_store")
def store(lanes: WarpEmitter, instruction: Instruction) -> None:
    """cp.async.bulk{.tensor.Nd}.global.shared::cta.bulk_group: to, [from] {, bytes}."""
    form, rank = _begin(instruction)
    words = form.flag("global"), form.flag("shared::cta"), form.flag("bulk_group")
    operands = _operands(instruction, form)
    if not all(words) or len(operands) != (2 if rank else 3):
        raise instruction.unsupported("its operands do not fit its form")
    to, source, *size = operands
    _issue(lanes, instruction, source, to, size, rank, proxy.TO_GLOBAL)


@emits("cp.bulk_reduction")
def reduction(lanes: WarpEmitter, instruction: Instruction) -> None:
    """cp.reduce.async.bulk.global.shared::cta.bulk_group.OP.TYPE [to], [from], bytes; a tensor's map has its TYPE."""
    form, rank = _begin(instruction)
    words = form.flag("reduce"), form.flag("global"), form.flag("shared::cta"), form.flag("bulk_group")
    operation = form.choice(*TYPES)
    if operation is None:
        raise instruction.unsupported()
    functions = functions_by_tensor_type(operation)
    if not rank:
        kind = form.type(TYPES[operation]).name
        if (kind in ("f16", "bf16") and operation == "add") != form.flag("noftz"):
            raise instruction.unsupported("add of 16-bit floats, and no other operation, is '.noftz'")
        functions = [function_of(operation, kind)]
    operands = _operands(instruction, form)
    if not all(words) or len(operands) != (2 if rank else 3):
        raise instruction.unsupported("its operands do not fit its form")
    to, source, *size = operands
    _issue(lanes, instruction, source, to, size, rank, proxy.TO_GLOBAL, _table(lanes, functions))


def _table(lanes: WarpEmitter, functions: list[str | None]) -> str:
    """Address, i64, of an array of function addresses, 0 for None."""
    lanes.called |= {name for name in functions if name is not None}
    lanes.declarations |= {f"declare void @sandbox_{name}(i64)" for name in functions if name is not None}
    words = ("i64 0" if name is None else f"i64 ptrtoint (ptr @sandbox_{name} to i64)" for name in functions)
    value = f"[{len(functions)} x i64] [{', '.join(words)}]"
    table = lanes.constants.setdefault(value, f"@words{len(lanes.constants)}")
    return lanes.argument("i64", f"ptrtoint (ptr {table} to i64)")


def _begin(instruction: Instruction) -> tuple[Form, int]:
    """The form without its first words, and the number of dimensions, 0 for a contiguous copy."""
    form = Form(instruction)
    if not (form.flag("async") and form.flag("bulk")):
        raise instruction.unsupported()
    if not form.flag("tensor"):
        return form, 0
    dimensions = form.choice(*_DIMENSIONS)
    form.flag("tile")
    if dimensions is None:
        raise instruction.unsupported("it needs its number of dimensions")
    return form, _DIMENSIONS[dimensions]


def _operands(instruction: Instruction, form: Form) -> list[Operand]:
    """All operands but the cache policy, which has no effect."""
    has_policy = form.flag("L2::cache_hint")
    form.end()
    return list(instruction.operands[: len(instruction.operands) - has_policy])


def _issue(
    lanes: WarpEmitter,
    instruction: Instruction,
    inner: Operand,
    outer: Operand,
    size: list[Operand],
    rank: int,
    direction: int,
    reduction: str = "0",
) -> None:
    """Issue a copy.

    `inner` is in shared memory; `outer` is in global memory, or a tensor map and coordinates, or the source in shared
    memory.

    For `direction` see `abi/async_proxy_layout.py`. `reduction` is the address of the reduction functions: one, or one
    per type for a tensor.
    """
    lanes.warp_store(vector("i64"), generic_addresses(lanes, inner, "shared"), at.ADDRESSES)
    if rank:
        if not isinstance(outer, Vector) or len(outer.items) != 2 or not isinstance(outer.items[1], Vector):
            raise instruction.unsupported("its operands do not fit its form")
        outer, coordinates = outer.items
        assert isinstance(coordinates, Vector)
        if len(coordinates.items) != rank:
            raise instruction.unsupported(f"it needs {rank} coordinates")
        for dimension, coordinate in enumerate(coordinates.items):
            place = at.DATA_2 + 128 * dimension if dimension < 4 else at.HOSTS
            lanes.warp_store(vector("i32"), lanes.use(coordinate, "i32"), place)
    else:
        lanes.warp_store(vector("i32"), lanes.use(size[0], "i32"), at.DATA_2)
    if not isinstance(outer, Address):
        raise instruction.unsupported("its operands do not fit its form")
    space = "shared" if direction & proxy.TO_OTHER_BLOCK else "global"
    lanes.warp_store(vector("i64"), generic_addresses(lanes, outer, space), at.DATA)
    mask = lanes.widen(lanes.active_bits())
    site = lanes.number(lanes.site(instruction))
    failed = lanes.runtime("issue_bulk", "%ctx", "%warp", site, mask, str(direction), str(rank), reduction)
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))
