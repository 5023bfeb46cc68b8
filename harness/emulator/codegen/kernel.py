"""Emits one entry of a PTX module as the LLVM IR of a function that runs one warp until it exits, waits or faults.

For lanes that are not running, the function stores the number of the block at which they wait (`PCS`). `dispatch` picks
the lowest number, makes the lanes that wait there the active mask, and jumps. A branch on which all active lanes agree
jumps directly, unless others wait at or before the target: then it goes through `dispatch`, where the lanes reconverge.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from harness.emulator.abi import layout as at
from harness.emulator.codegen.barrier_paths import BarrierPaths
from harness.emulator.codegen.cpu import ANY_CPU, Cpu
from harness.emulator.codegen.emitters import emitter_for
from harness.emulator.codegen.flushed_registers import flushed_registers
from harness.emulator.codegen.functions.prelude import PRELUDE
from harness.emulator.codegen.instructions.asynchronous.launch_control import require_launch_control
from harness.emulator.codegen.instructions.integer import CARRY
from harness.emulator.codegen.instrumentation.block_counts import count_execution
from harness.emulator.codegen.instrumentation.product_registers import ProductRegisters, marked_registers
from harness.emulator.codegen.instrumentation.shared_arrays import arrays_of_registers
from harness.emulator.codegen.instrumentation.undefined_registers import UndefinedRegisters
from harness.emulator.codegen.kernel_facts import (
    ClusterFacts,
    KernelFacts,
    Parameter,
    SharedVariable,
    Site,
    connects_blocks,
    entry_registers,
    reads_grid_barrier,
    sites_of,
)
from harness.emulator.codegen.matrix.tensor_memory import require_tensor_cores
from harness.emulator.codegen.matrix.warpgroup import name_held_tickets, registers_with_tickets
from harness.emulator.codegen.outlining import OutliningEmitter
from harness.emulator.codegen.storage import Registers, Storage, link_variables, module_places, module_variables
from harness.emulator.codegen.uniform_registers import uniform_registers
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.emulator.instruments import PLAIN, Instruments
from harness.ptx.blocks import EXIT, Block, Graph, build_graph, is_block_barrier, live_registers, yields
from harness.ptx.call_parameters import lower_call_parameters
from harness.ptx.inline import inline_calls
from harness.ptx.instructions import Function, Instruction, Module, Symbol, Variable, names_in
from harness.ptx.opcodes import COPY, Flow
from harness.ptx.parameters import offsets_of
from harness.ptx.types import TYPES
from harness.support.errors import CompileError

_MOST_LOCAL_BYTES = 512 * 1024
"""Maximum local memory per thread (CUDA C++ Programming Guide, table of technical specifications)."""


@dataclass(frozen=True)
class KernelCode:
    """The IR of one kernel, and its properties that a launch needs."""

    body: str
    """IR with an unnamed function."""
    facts: KernelFacts
    calls: frozenset[str]
    """Functions of the runtime that it calls."""

    @property
    def symbol(self) -> str:
        """A name for the function that is unique to this kernel."""
        return "warp_" + hashlib.sha256(self.body.encode()).hexdigest()[:32]

    def ir_as(self, symbol: str) -> str:
        """The IR, with the function under this name."""
        return self.body.replace("@warp(", f"@{symbol}(", 1)


def generate(
    module: Module, entry: str, instruments: Instruments = PLAIN, outlined: bool = False, cpu: Cpu = ANY_CPU
) -> KernelCode:
    """Emit one entry with the instruments compiled in. `outlined` is for a compiler that does not optimize.

    Raises `CompileError` if the PTX is invalid, and `UnsupportedInstruction` if it contains unsupported instructions.
    """
    function = module.functions.get(entry)
    if function is None or function.body is None or not function.is_entry:
        raise CompileError(f"the PTX has no kernel '{entry}'")
    flat = inline_calls(module, function)
    require_tensor_cores(module, flat)
    require_launch_control(module, flat)
    lower_call_parameters(flat)
    flat.registers[CARRY] = TYPES["pred"]
    storage, shared, local, variables = _place_variables(module, flat)
    parameters = _place_parameters(flat, storage)
    _verify(flat, storage)
    graph = build_graph(flat)
    live = live_registers(graph)
    clusters = ClusterFacts.of(function, flat)
    watched = marked_registers(flat) if instruments.sanitizer else []
    shared_variables = _shared_variables(module, flat, storage)
    if instruments.sanitizer:
        storage.shared_arrays = {variable.name: number for number, variable in enumerate(shared_variables)}
        storage.arrays_of_registers = arrays_of_registers(flat, frozenset(storage.shared_arrays))
    lasting = frozenset(set().union(*live.before, registers_with_tickets(flat), watched))
    plain = not outlined and not instruments.sanitizer
    uniform = uniform_registers(flat, graph, live) if plain else frozenset[str]()
    registers = Registers(flat.registers, flushed_registers(flat), lasting, uniform)
    lanes = (
        OutliningEmitter(registers, storage, instruments, clusters.knows)
        if outlined
        else WarpEmitter(registers, storage, instruments, clusters.knows, cpu)
    )
    products = ProductRegisters(lanes, flat, graph)
    read_first = live.before[0] & flat.registers.keys()
    _Writer(lanes, graph, live.behind, products, UndefinedRegisters(lanes, graph, read_first)).write()
    if any(i.facts.flow is Flow.WARPGROUP for i in flat.instructions()):
        name_held_tickets(lanes, flat)
    body = _assemble(lanes)
    facts = KernelFacts(
        parameters,
        shared,
        local,
        link_variables(variables, storage.addresses, flat),
        shared_variables,
        lanes.register_bytes,
        bool(read_first or lanes.marks),
        any(connects_blocks(i) for i in flat.instructions()),
        any(i.row_name == "call.vprintf" for i in flat.instructions()),
        any(i.facts.memory is COPY or i.row_name == "cp.mbarrier" for i in flat.instructions()),
        any(i.facts.async_proxy for i in flat.instructions()),
        function.most_threads,
        entry_registers(function, flat),
        any(reads_grid_barrier(i) for i in flat.instructions()),
        clusters,
        sites_of(lanes.sites, flat),
        tuple(Site.of(b.source) if b.source else None for b in graph.blocks),
        BarrierPaths.of(graph, lanes.sites) if instruments.sanitizer else None,
    )
    return KernelCode(body, facts, frozenset(lanes.called))


def _align(offset: int, align: int) -> int:
    return -(-offset // align) * align


def _place_variables(module: Module, function: Function) -> tuple[Storage, int, int, tuple[Variable, ...]]:
    storage = Storage()
    shared = local = 0
    placed = module_variables(module)
    storage.addresses |= module_places(module)
    dynamic: list[Variable] = []
    for variable in (*module.variables.values(), *function.variables.values()):
        if variable.space == "shared":
            if variable.extern and variable.size_bytes == 0:
                dynamic.append(variable)
                continue
            offset = _align(shared, variable.align_bytes)
            storage.addresses[variable.name] = ("shared", offset)
            shared = offset + variable.size_bytes
        elif variable.space == "local":
            offset = _align(local, variable.align_bytes)
            storage.addresses[variable.name] = ("local", offset)
            local = offset + variable.size_bytes
        elif variable.space in ("global", "const") and variable.name not in module.variables:
            storage.addresses[variable.name] = (variable.space, at.variable_address(len(placed)))
            placed.append(variable)
    if local > _MOST_LOCAL_BYTES:
        raise CompileError(
            f"the variables of kernel {function.name} in local memory take {local} bytes per thread, more than the "
            f"{_MOST_LOCAL_BYTES} that there are; its largest is {_largest(module, function)}"
        )
    shared = _align(shared, max((v.align_bytes for v in dynamic), default=1))
    storage.static_shared_bytes = shared
    for variable in dynamic:
        storage.addresses[variable.name] = ("shared", shared)
    return storage, shared, _align(local, 16), tuple(placed)


def _largest(module: Module, function: Function) -> str:
    variables = (v for v in (*module.variables.values(), *function.variables.values()) if v.space == "local")
    return max(variables, key=lambda variable: variable.size_bytes).name


def _shared_variables(module: Module, function: Function, storage: Storage) -> tuple[SharedVariable, ...]:
    variables = (v for v in (*module.variables.values(), *function.variables.values()) if v.space == "shared")
    placed = (SharedVariable(v.name, storage.addresses[v.name][1], v.size_bytes) for v in variables)
    return tuple(sorted(placed, key=lambda v: v.offset))


def _place_parameters(function: Function, storage: Storage) -> tuple[Parameter, ...]:
    parameters = []
    for parameter, offset in zip(function.params, offsets_of(function.params)):
        parameters.append(Parameter(parameter.name, offset, parameter.size_bytes))
        storage.parameters[parameter.name] = offset
        storage.addresses[parameter.name] = ("param", (at.PARAM_WINDOW << at.WINDOW_BITS) + offset)
    return tuple(parameters)


def _verify(function: Function, storage: Storage) -> None:
    """Check that names in operands are declared (registers, special registers, variables) and guards are predicates.

    Labels are checked by branches.
    """
    for instruction in function.instructions():
        guard = instruction.predicate
        if guard is not None and getattr(function.registers.get(guard.name), "kind", "") != "pred":
            raise CompileError(f"PTX line {instruction.ptx_line}: '@{guard.name}' is not a predicate that was declared")
        for operand in names_in(instruction):
            name = operand.name
            if isinstance(operand, Symbol):
                known = name in storage.addresses or instruction.opcode in ("bra", "brx")
            else:
                known = name in function.registers or name == "_" or name.startswith("%")
            if not known:
                raise CompileError(f"PTX line {instruction.ptx_line}: '{name}' is not declared")


class _Writer:
    """Writes the function's body to `lanes`."""

    def __init__(
        self,
        lanes: WarpEmitter,
        graph: Graph,
        live_out: list[set[str]],
        products: ProductRegisters,
        undefined: UndefinedRegisters,
    ) -> None:
        self._lanes = lanes
        self._graph = graph
        self._live_out = live_out
        self._meeting_places: set[int] = set()
        self._products = products
        self._undefined = undefined
        lanes.ways_out = tuple(n for n, b in enumerate(graph.blocks) if not b.body and list(b.targets) == [EXIT])

    def write(self) -> None:
        lanes = self._lanes
        self._dispatch()
        for number, block in enumerate(self._graph.blocks):
            self._block(number, block)
        for target in sorted(self._meeting_places):
            self._meet(target)
        lanes.label("exited")
        lanes.do(f"ret i32 {at.EXITED}")
        lanes.label("faulted")
        lanes.do(f"ret i32 {at.FAULTED}")
        lanes.label("nowhere")
        lanes.do("unreachable")

    def _dispatch(self) -> None:
        lanes = self._lanes
        lanes.label("dispatch")
        pcs = lanes.warp_load("<32 x i32>", at.PCS)
        lowest = self._minimum(pcs)
        done = lanes.op(f"icmp eq i32 {lowest}, {at.EXITED_PC}")
        lanes.do(f"br i1 {done}, label %exited, label %alive")
        lanes.label("alive")
        lanes.do(f"br i1 {self._turn_is_over()}, label %yield, label %go, !prof !0")
        lanes.label("yield")
        lanes.do(f"ret i32 {at.YIELDED}")
        lanes.label("go")
        here = lanes.compare("eq", "i32", pcs, lanes.spread("i32", lowest))
        lanes.do(f"store i32 {lanes.bits_of(here)}, ptr %mask.slot")
        waiting = lanes.select("i32", here, f"splat (i32 {at.EXITED_PC})", pcs)
        lanes.do(f"store i32 {self._minimum(waiting)}, ptr %next.slot")
        cases = " ".join(f"i32 {n}, label %block{n}" for n in range(len(self._graph.blocks)))
        lanes.do(f"switch i32 {lowest}, label %nowhere [ {cases} ]")

    def _turn_is_over(self) -> str:
        """Whether to yield to the other warps. All loops pass here or through `dispatch`, so none is endless."""
        lanes = self._lanes
        return lanes.op(f"icmp ugt i64 {lanes.slot('STEPS')}, {lanes.slot('TURN_END')}")

    def _minimum(self, values: str) -> str:
        return self._lanes.intrinsic("llvm.vector.reduce.smin.v32i32", "i32", ("<32 x i32>", values))

    def _block(self, number: int, block: Block) -> None:
        lanes = self._lanes
        lanes.label(f"block{number}")
        lanes.begin_block(lanes.op("load i32, ptr %mask.slot"), block)
        with lanes.shared_function():
            self._count(len(block.body) + (block.branch is not None))
            count_execution(lanes, number)
        for instruction in block.body:
            if self._products.watches or self._undefined.watches or not lanes.repeat(instruction):
                emit = emitter_for(instruction)
                with lanes.shared_function():
                    lanes.guard(instruction)
                    self._products.watch(instruction, number)
                    self._undefined.watch(instruction)
                    emit(lanes, instruction)
            lanes.end_instruction()
        if block.branch is not None and self._undefined.watches:
            with lanes.shared_function():
                self._undefined.watch_branch(block.branch)
        self._leave(number, block)
        if block.branch is not None:
            lanes.end_instruction()

    def _count(self, instructions: int) -> None:
        if not instructions:
            return
        lanes = self._lanes
        active = lanes.op(f"call i32 @llvm.ctpop.i32(i32 {lanes.mask})")
        lanes.declarations.add("declare i32 @llvm.ctpop.i32(i32)")
        count = lanes.number(instructions)
        work = lanes.op(f"mul i64 {lanes.widen(active)}, {count}")
        for slot, amount in (("STEPS", count), ("LANE_INSTRUCTIONS", work)):
            pointer = lanes.slot_pointer(slot)
            total = lanes.op(f"add i64 {lanes.op(f'load i64, ptr {pointer}')}, {amount}")
            lanes.do(f"store i64 {total}, ptr {pointer}")

    # Leaving a block ------------------------------------------------------------------------------------------------

    def _leave(self, number: int, block: Block) -> None:
        lanes = self._lanes
        live = self._live_out[number]
        branch = block.branch
        if branch is None or (branch.predicate is None and branch.opcode != "brx"):
            (target,) = block.targets
            lanes.end_block(live)
            if block.body and yields(block.body[-1]):
                self._park_all(target)
                lanes.do(f"ret i32 {self._status_behind(block.body[-1])}")
            else:
                self._go(number, target)
            return
        if branch.opcode == "brx":
            self._switch(branch, block, live)
            return
        assert branch.predicate is not None
        lanes.guard(branch)
        bits = lanes.active_bits()
        lanes.end_block(live)
        taken, straight = block.targets
        words = ("straight", "some", "taken", "diverged")
        fall_through, some, all_taken, diverged = (f"{word}{number}" for word in words)
        none = lanes.op(f"icmp eq i32 {bits}, 0")
        lanes.do(f"br i1 {none}, label %{fall_through}, label %{some}")
        lanes.label(some)
        everyone = lanes.op(f"icmp eq i32 {bits}, {lanes.mask}")
        lanes.do(f"br i1 {everyone}, label %{all_taken}, label %{diverged}")
        lanes.label(all_taken)
        self._go(number, taken)
        lanes.label(fall_through)
        self._go(number, straight)
        lanes.label(diverged)
        with lanes.shared_function():
            lanes.guard(branch)
            self._park(lanes.select("i32", lanes.active(), self._pc(taken), self._pc(straight)))
        if taken == EXIT:
            self._retire(number, bits)
        if straight == EXIT:
            self._retire(number, lanes.op(f"xor i32 {bits}, {lanes.mask}"))
        lanes.do("br label %dispatch")

    @staticmethod
    def _status_behind(instruction: Instruction) -> int:
        if is_block_barrier(instruction):
            return at.AT_BARRIER
        return {Flow.WARPGROUP: at.AT_WARPGROUP, Flow.CLUSTER: at.AT_CLUSTER}.get(instruction.facts.flow, at.YIELDED)

    def _switch(self, branch: Instruction, block: Block, live: set[str]) -> None:
        """`brx.idx`: each lane continues at its own target, through `dispatch`."""
        lanes = self._lanes
        with lanes.shared_function():
            lanes.guard(branch)
            index = lanes.use(branch.operands[0], "i32")
            lanes.end_block(live)
            where = self._pc(block.targets[0])
            for position, target in enumerate(block.targets[1:], start=1):
                here = lanes.compare("eq", "i32", index, f"splat (i32 {position})")
                where = lanes.select("i32", here, self._pc(target), where)
            self._park(where)
        lanes.do("br label %dispatch")

    def _pc(self, target: int) -> str:
        return self._lanes.integer(at.EXITED_PC if target == EXIT else target, "i32")

    def _park_all(self, target: int) -> None:
        """Let all active lanes wait at the block `target`."""
        with self._lanes.shared_function():
            self._park(self._pc(target))

    def _park(self, where: str) -> None:
        """Let each active lane wait at its block in `where`."""
        lanes = self._lanes
        old = lanes.warp_load("<32 x i32>", at.PCS)
        lanes.warp_store("<32 x i32>", lanes.select("i32", lanes.lanes_of(lanes.mask), where, old), at.PCS)

    def _retire(self, number: int, bits: str) -> None:
        """Lanes exit the kernel at the end of block `number`."""
        lanes = self._lanes
        block = self._graph.blocks[number]
        last = block.branch or (block.body[-1] if block.body else block.source)
        if lanes.knows_clusters and last is not None:
            lanes.warp_store("i32", str(lanes.site(last) + 1), at.LEFT_AT, 4)
        alive = lanes.warp_load("i32", at.ALIVE, 4)
        lanes.warp_store("i32", lanes.op(f"and i32 {alive}, {lanes.op(f'xor i32 {bits}, -1')}"), at.ALIVE, 4)

    def _go(self, number: int, target: int) -> None:
        """All active lanes jump to `target`."""
        lanes = self._lanes
        if target == EXIT:
            self._park_all(EXIT)
            self._retire(number, lanes.mask)
            lanes.do("br label %dispatch")
            return
        self._meeting_places.add(target)
        waiting = lanes.op("load i32, ptr %next.slot")
        reached = lanes.op(f"icmp sle i32 {waiting}, {target}")
        if target <= number:
            reached = lanes.op(f"or i1 {reached}, {self._turn_is_over()}")
        lanes.do(f"br i1 {reached}, label %meet{target}, label %block{target}, !prof !0")

    def _meet(self, target: int) -> None:
        """The active lanes join others that wait at `target`, or yield to those that wait before it."""
        lanes = self._lanes
        lanes.label(f"meet{target}")
        lanes.mask = lanes.op("load i32, ptr %mask.slot")
        self._park_all(target)
        lanes.do("br label %dispatch")


def _assemble(lanes: WarpEmitter) -> str:
    declarations = set(lanes.declarations)
    functions: list[str] = []
    for name in sorted(lanes.preludes):
        text, needed = PRELUDE[name].text(name)
        functions += text
        declarations |= needed
    return "\n".join(
        [
            *sorted(declarations),
            *(f"{name} = internal constant {value}" for value, name in lanes.constants.items()),
            *functions,
            *lanes.definitions(),
            "define i32 @warp(i64 %ctx, i64 %warp) {",
            "entry:",
            "  %ctx.p = inttoptr i64 %ctx to ptr",
            "  %warp.p = inttoptr i64 %warp to ptr",
            "  %mask.slot = alloca i32",
            "  %next.slot = alloca i32",
            *(f"  {name} = {expression}" for name, expression in lanes.pointers.items()),
            "  br label %dispatch",
            *lanes.lines,
            "}",
            '!0 = !{!"branch_weights", i32 1, i32 1000}',
            "",
        ]
    )
