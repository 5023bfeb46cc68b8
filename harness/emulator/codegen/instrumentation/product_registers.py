"""Emits the sanitizer's checks on registers of warpgroup products (PTX ISA 9.7.15.7.1).

A `wgmma.fence` is required between a thread's access to a register and a product that adds to it or has it as A, except
between products of the same shape that add to it, or if A was only read. So each such register has marks: the
instructions that wrote and read it since the last fence. Registers in flight may not be accessed either: sums not at
all, and A not written.

Compilers move registers: a `mov` from register to register is not an access, and copies the marks. Compilers also move
arithmetic past a fence that preceded it, since nothing constrains the order: instructions that involve neither memory
nor other lanes, between a fence and the following commit, leave no mark.
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import sanitizer_layout as sanitizer
from harness.emulator.codegen.matrix.warpgroup import registers_with_tickets
from harness.emulator.codegen.vector_ir_builder import splat, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.blocks import Graph, registers_of
from harness.ptx.instructions import Function, Instruction, Reg, SourceLine, Vector
from harness.ptx.opcodes import Flow

_WRITTEN, _READ, _USED = range(3)
"""Indices of the lists of marks."""
_BITS = 32


class ProductRegisters:
    """The watched registers of one function; empty without the sanitizer or without products."""

    def __init__(self, lanes: WarpEmitter, function: Function, graph: Graph) -> None:
        """Has to be created before any other register of `lanes` is placed."""
        self._lanes = lanes
        self._sites: dict[tuple[str, SourceLine], int] = {}
        is_watched = lanes.instruments.sanitizer
        sums, fragments = _operands(function) if is_watched else (set[str](), set[str]())
        marked = marked_registers(function) if is_watched else []
        self._marked = {name: number for number, name in enumerate(marked)}
        self._fragments = fragments
        self._tickets = frozenset(registers_with_tickets(function)) if is_watched else frozenset[str]()
        self._stages = _open_stages(graph) if sums else []
        self._block, self._in_stage = -1, False
        if sums:
            for name in self._marked:
                lanes.place(name)
            lanes.marks = lanes.reserve(proxy.MARKS + 3 * 4 * len(self._marked))

    @property
    def watches(self) -> bool:
        """Whether there are registers to watch."""
        return bool(self._marked)

    def watch(self, instruction: Instruction, block: int) -> None:
        """Called before each instruction of block number `block`, in order."""
        if not self._marked:
            return
        if block != self._block:
            self._block, self._in_stage = block, self._stages[block]
        self._in_stage = _stage_behind(instruction, self._in_stage)
        name = instruction.row_name
        if name == "wgmma.fence":
            self._lanes.runtime("fence_registers", "%warp", str(self._lanes.marks))
        elif name != "wgmma.mma_async":
            self._watch_access(instruction)

    def _watch_access(self, instruction: Instruction) -> None:
        reads, writes = registers_of(instruction)
        moved = _moved(instruction)
        source = moved[1] if moved is not None and moved[1] in self._marked else None
        if source is None and instruction.opcode != "mov":
            for name in sorted(reads & self._tickets):
                self._check_ticket(instruction, name, sanitizer.EARLY_ACCUMULATOR)
        if source is None:
            for name in sorted((writes - reads) & self._tickets):
                self._check_ticket(instruction, name, sanitizer.EARLY_REGISTER)
        for name in sorted(writes & self._fragments):
            self._check_use(instruction, name)
        if source is not None:
            for name in sorted(writes & self._marked.keys()):
                for which in (_WRITTEN, _READ):
                    self._store(self._place(which, name), self._load(self._place(which, source)))
        elif not (self._in_stage and _may_be_moved(instruction)):
            if instruction.opcode != "mov":
                for name in sorted(reads & self._marked.keys()):
                    self._store(self._place(_READ, name), self._mark(instruction))
            for name in sorted(writes & self._marked.keys()):
                self._store(self._place(_WRITTEN, name), self._mark(instruction))

    # Marks ----------------------------------------------------------------------------------------------------------

    def _place(self, which: int, name: str) -> int:
        return self._lanes.marks + proxy.MARKS + 4 * (which * len(self._marked) + self._marked[name])

    def _load(self, place: int) -> str:
        return self._lanes.warp_load("i32", place, 4)

    def _store(self, place: int, mark: str) -> None:
        """Write a mark if the instruction runs on some lane."""
        lanes = self._lanes
        if lanes.instruction is not None and lanes.instruction.predicate is not None:
            runs = lanes.op(f"icmp ne i32 {lanes.active_bits()}, 0")
            mark = lanes.op(f"select i1 {runs}, i32 {mark}, i32 {self._load(place)}")
        lanes.warp_store("i32", mark, place, 4)

    def _mark(self, instruction: Instruction) -> str:
        return self._lanes.number(self._site(instruction), "i32")

    def _site(self, instruction: Instruction) -> int:
        """One number for all instructions of the same form and source line, since loops are unrolled."""
        if instruction.source is None:
            return self._lanes.site(instruction)
        key = (instruction.form, instruction.source)
        if key not in self._sites:
            self._sites[key] = self._lanes.site(instruction)
        return self._sites[key]

    # In flight ------------------------------------------------------------------------------------------------------

    def _check_ticket(self, instruction: Instruction, name: str, kind: int) -> None:
        """Check whether some lane holds a value that looks like a ticket."""
        lanes = self._lanes
        place = lanes.home(Reg(name))
        words = lanes.warp_load(vector("i32"), place)
        marks = lanes.binary("and", "i32", words, splat("i32", proxy.TICKET_MASK))
        held = lanes.bits_of(lanes.compare("eq", "i32", marks, splat("i32", proxy.TICKET)))
        self._call_where(
            lanes.op(f"icmp ne i32 {held}, 0"), "watch_accumulator", instruction, lanes.number(place), str(kind)
        )

    def _check_use(self, instruction: Instruction, name: str) -> None:
        """Check whether a product in flight has the register as A."""
        product = self._load(self._place(_USED, name))
        used = self._lanes.op(f"icmp ne i32 {product}, {proxy.NO_MARK}")
        self._call_where(used, "watch_fragment", instruction, self._lanes.widen(product))

    def _call_where(self, condition: str, function: str, instruction: Instruction, *more: str) -> None:
        lanes = self._lanes
        early, go_on = lanes.fresh_label("early"), lanes.fresh_label("late")
        lanes.do(f"br i1 {condition}, label %{early}, label %{go_on}, !prof !0")
        lanes.label(early)
        site, mask = lanes.number(self._site(instruction)), lanes.widen(lanes.active_bits())
        lanes.runtime(function, "%ctx", "%warp", site, mask, *more)
        lanes.do(f"br label %{go_on}")
        lanes.label(go_on)


def marked_registers(function: Function) -> list[str]:
    """Registers with marks: operands of products, and registers that are moved to them."""
    sums, fragments = _operands(function)
    return sorted(_moved_to(function, sums | fragments))


def _operands(function: Function) -> tuple[set[str], set[str]]:
    """Registers of all products: accumulators, and those of A."""
    found: tuple[set[str], set[str]] = (set(), set())
    for instruction in function.instructions():
        if instruction.row_name == "wgmma.mma_async":
            for operand, names in zip(instruction.operands[:2], found):
                if isinstance(operand, Vector):
                    names |= {item.name for item in operand.items if isinstance(item, Reg)}
    return found


def _moved(instruction: Instruction) -> tuple[str, str] | None:
    """Destination and source of a `mov` from register to register; None for other instructions."""
    if instruction.opcode != "mov" or len(instruction.operands) != 2:
        return None
    target, source = instruction.operands
    return (target.name, source.name) if isinstance(target, Reg) and isinstance(source, Reg) else None


def _moved_to(function: Function, names: set[str]) -> set[str]:
    """These registers, and those that are moved to them."""
    sources: dict[str, set[str]] = {}
    for instruction in function.instructions():
        moved = _moved(instruction)
        if moved is not None and moved[1] in function.registers:
            sources.setdefault(moved[0], set()).add(moved[1])
    found, waiting = set(names), list(names)
    while waiting:
        more = sources.get(waiting.pop(), set()) - found
        found |= more
        waiting += more
    return {name for name in found if name in function.registers and function.registers[name].total_bits == _BITS}


def _may_be_moved(instruction: Instruction) -> bool:
    facts = instruction.facts
    return facts.memory is None and facts.flow is Flow.NEXT and "sync" not in instruction.modifiers


def _stage_behind(instruction: Instruction, before: bool) -> bool:
    """Whether after the instruction there is a fence whose products are not committed, given the state before it."""
    return instruction.row_name == "wgmma.fence" or (before and instruction.row_name != "wgmma.commit_group")


def _open_stages(graph: Graph) -> list[bool]:
    """For each block, whether it may begin in that state."""
    begins = [False] * len(graph.blocks)
    waiting = list(range(len(graph.blocks)))
    while waiting:
        number = waiting.pop()
        is_open = begins[number]
        for instruction in graph.blocks[number].body:
            is_open = _stage_behind(instruction, is_open)
        for target in graph.blocks[number].targets:
            if is_open and target >= 0 and not begins[target]:
                begins[target] = True
                waiting.append(target)
    return begins
