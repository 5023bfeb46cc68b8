"""Emits one kernel's function: registers, predicates and calls of the runtime, on top of the IR builder.

Registers are represented as integers: in the warp's memory between blocks, and as LLVM values within one. `outlining`,
which reduces LLVM's work, has them in memory all the time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from harness.emulator.abi import layout as at
from harness.emulator.abi.context import SLOT
from harness.emulator.codegen.cpu import ANY_CPU, Cpu
from harness.emulator.codegen.functions.prelude import PRELUDE
from harness.emulator.codegen.instructions.special_registers import special_register
from harness.emulator.codegen.storage import Registers, Storage
from harness.emulator.codegen.uniform_values import UniformValues
from harness.emulator.codegen.vector_ir_builder import BITS, FLOAT, INTEGER, float_from_bits, splat, splat_float, vector
from harness.emulator.instruments import PLAIN, Instruments
from harness.ptx.blocks import Block
from harness.ptx.instructions import SINK, Address, Imm, Instruction, Not, Operand, Reg, Symbol
from harness.support.errors import UnsupportedInstruction


class WarpEmitter(UniformValues):
    """Emits one function.

    `begin_block` and `end_block` frame each basic block; instruction families are called in between.
    """

    def __init__(
        self,
        registers: Registers,
        storage: Storage,
        instruments: Instruments = PLAIN,
        knows_clusters: bool = False,
        cpu: Cpu = ANY_CPU,
    ) -> None:
        """`knows_clusters`: whether addresses of shared memory contain their block's rank, see `abi/layout.py`."""
        super().__init__()
        self.cpu = cpu
        self.knows_clusters = knows_clusters
        self.storage = storage
        self.instruments = instruments
        self.sites: list[Instruction] = []
        """Instructions that generated code refers to by number, because they access memory or can fault."""
        self.preludes: set[str] = set()
        self.called: set[str] = set()
        """Runtime functions that are called."""
        self.pointers: dict[str, str] = {}
        """Pointers into the context and the warp that are computed at the function's entry: expression by name."""
        self.constants: dict[str, str] = {}
        """Global constants next to the function: name by value."""
        self.instructions_left = 0
        """Number of instructions in the block after the current one; `STEPS` already counts them."""
        self.mask = ""
        """The mask of lanes that run this block, i32."""
        self.ways_out: tuple[int, ...] = ()
        """Numbers of blocks that only exit the kernel."""
        self.register_bytes = 0
        self.marks = 0
        """Offset in the warp's memory of the sanitizer's marks of product registers; 0 if there are none."""
        self.sampling = 0
        """Offset in the warp's memory of that for sampling textures; 0 if there is none."""
        self._registers = registers
        self._offsets: dict[str, int] = {}
        self._values: dict[tuple[str, str], str] = {}
        self._dirty: dict[str, str] = {}
        self._flushed: dict[str, str] = {}
        self._checked_members: set[Operand | None] = set()
        self.instruction: Instruction | None = None
        """The current instruction, for messages."""
        self._guard: str | None = None
        self._mask_lanes = ""

    # Calls ---------------------------------------------------------------------------------------------------------

    def prelude(self, name: str, *values: str) -> str:
        """Call one of the functions in `prelude.py`."""
        function = PRELUDE[name]
        self.preludes.add(name)
        arguments = ", ".join(f"{t} {v}" for t, v in zip(function.arguments, values, strict=True))
        return self.op(f"call {function.result} @{name}({arguments})")

    def runtime(self, name: str, *values: str) -> str:
        """Call a function of the runtime; all arguments and the result are i64."""
        self.called.add(name)
        self.declarations.add(f"declare i64 @sandbox_{name}({', '.join('i64' for _ in values)})")
        return self.op(f"call i64 @sandbox_{name}({', '.join(f'i64 {v}' for v in values)})")

    def constant_words(self, words: Sequence[int]) -> str:
        """Name of a constant array of i32; equal arrays share one name."""
        value = f"[{len(words)} x i32] [{', '.join(f'i32 {word}' for word in words)}]"
        return self.constants.setdefault(value, f"@words{len(self.constants)}")

    # Hooks for `outlining` ------------------------------------------------------------------------------------------

    def shared_function(self) -> AbstractContextManager[None]:
        """A context manager around the code of one instruction, which other instructions may share."""
        return nullcontext()

    def repeat(self, instruction: Instruction) -> bool:
        """Emit the instruction as an earlier one that differs only in register locations; False if there is none.

        If it returns False, the instruction's `shared_function` has to follow.
        """
        return False

    def argument(self, kind: str, constant: str) -> str:
        """A constant of LLVM type `kind` that may differ among instructions that share their code."""
        return constant

    def number(self, value: int, kind: str = "i64") -> str:
        """An integer constant of at most 64 bits that may differ among instructions that share their code."""
        return self.argument(kind, str(value))

    def integer(self, value: int, element: str) -> str:
        """An integer constant in all lanes that may differ among instructions that share their code."""
        return splat(element, value)

    def _float_from_bits(self, bits: int, element: str) -> str:
        return float_from_bits(element, bits)

    def definitions(self) -> list[str]:
        """Definitions that accompany the kernel's function."""
        return []

    # The context and the warp's memory ------------------------------------------------------------------------------

    def slot_pointer(self, name: str) -> str:
        """Pointer to a slot of the context."""
        return self._pointer(f"%ctx.{name}", f"getelementptr i64, ptr %ctx.p, i64 {SLOT[name]}")

    def slot(self, name: str) -> str:
        """Value of a slot of the context, i64."""
        return self.op(f"load i64, ptr {self.slot_pointer(name)}")

    def warp_pointer(self, offset: int) -> str:
        """Pointer into the warp's state."""
        return self._pointer(f"%warp.{offset}", f"getelementptr i8, ptr %warp.p, i64 {offset}")

    def _pointer(self, name: str, expression: str) -> str:
        """A pointer that is computed once, at the function's entry."""
        self.pointers[name] = expression
        return name

    def warp_load(self, kind: str, offset: int, align: int = 64) -> str:
        """Load a value of LLVM type `kind` from the warp's state."""
        return self.op(f"load {kind}, ptr {self.warp_pointer(offset)}, align {align}")

    def warp_store(self, kind: str, value: str, offset: int, align: int = 64) -> None:
        """Store a value of LLVM type `kind` to the warp's state."""
        self.do(f"store {kind} {value}, ptr {self.warp_pointer(offset)}, align {align}")

    # Blocks ---------------------------------------------------------------------------------------------------------

    def begin_block(self, mask: str, block: Block) -> None:
        """Discard all register values; `mask` is the i32 of active lanes."""
        self.mask = mask
        self.instructions_left = len(block.body) + (block.branch is not None)
        self._mask_lanes = self.lanes_of(mask)
        self._values.clear()
        self._dirty.clear()
        self._flushed.clear()
        self.forget_scalars()
        self._checked_members.clear()
        self._guard = None

    def end_block(self, live: set[str]) -> None:
        """Store the registers that later blocks read to memory, in the active lanes only."""
        for name, element in self._dirty.items():
            if name not in live:
                continue
            value = self._values[name, element]
            offset = self._offset(name)
            if element == "i1":
                old = self.warp_load("i32", offset, 4)
                bits = self.bits_of(value)
                kept = self.op(f"and i32 {old}, {self.op(f'xor i32 {self.mask}, -1')}")
                taken = self.op(f"and i32 {bits}, {self.mask}")
                self.warp_store("i32", self.op(f"or i32 {kept}, {taken}"), offset, 4)
            else:
                old = self.warp_load(vector(element), offset)
                self.warp_store(vector(element), self.select(element, self._mask_lanes, value, old), offset)
        self._dirty.clear()

    def guard(self, instruction: Instruction) -> None:
        """Limit writes and memory accesses to lanes where the instruction's predicate holds, until the next `guard`."""
        self.instruction = instruction
        self.instructions_left -= 1
        self._guard = None
        if instruction.predicate is not None:
            lanes = self.use(instruction.predicate, "i1")
            self._guard = self.binary("xor", "i1", lanes, splat("i1", 1)) if instruction.negated else lanes

    def end_instruction(self) -> None:
        """Called after each instruction of a block."""

    def active(self) -> str:
        """Lanes on which the current instruction runs, as predicates: the block's mask and its own predicate."""
        if self._guard is None:
            return self._mask_lanes
        return self.binary("and", "i1", self._mask_lanes, self._guard)

    def active_bits(self) -> str:
        """Lanes on which the current instruction runs, as an i32 mask."""
        if self._guard is None:
            return self.mask
        runs = self.scalar_of(self._guard)
        return self.bits_of(self.active()) if runs is None else self.op(f"select i1 {runs}, i32 {self.mask}, i32 0")

    # Registers and operands -----------------------------------------------------------------------------------------

    def _offset(self, name: str) -> int:
        if name not in self._offsets:
            self._offsets[name] = at.REGISTERS + self.register_bytes
            self.register_bytes += self._size_bytes(name)
        return self._offsets[name]

    def _size_bytes(self, name: str) -> int:
        """Bytes of a register of the warp, at least a cache line, to which the next one is aligned."""
        bits = self._registers.types[name].total_bits
        return max(64, 32 * bits // 8)

    def _element(self, name: str) -> str:
        return INTEGER[self._registers.types[name].total_bits]

    def is_predicate(self, operand: Operand) -> bool:
        """Whether the operand is a predicate, negated or not."""
        name = getattr(operand.reg if isinstance(operand, Not) else operand, "name", "")
        return name in self._registers.types and self._element(name) == "i1"

    def has_128_bits(self, operand: Operand) -> bool:
        """Whether the operand is a register of 128 bits."""
        kind = self._registers.types.get(getattr(operand, "name", ""))
        return kind is not None and kind.bits == 128

    def use(self, operand: Operand, element: str) -> str:
        """The operand's 32 lanes as `element`. A wider register is truncated; floats are bit-cast."""
        match operand:
            case Not(reg) if element == "i1":
                return self.binary("xor", "i1", self.use(reg, "i1"), splat("i1", 1))
            case Imm(value, float_bits):
                return self._constant(value, float_bits, element)
            case Symbol(name, offset):
                address = self.integer(self.symbol_address(name) + offset, element)
                if self.knows_clusters and self.storage.addresses[name][0] == "shared":
                    return self.binary("add", element, address, self.own_tag(element))
                return address
            case Reg(name) if name in self._registers.types:
                if (self._element(name) == "i1") != (element == "i1"):
                    raise self._misplaced(operand)  # predicates and numbers are not interchangeable
                return self._use_register(name, element)
            case Reg("%is_explicit_cluster") if element == "i1":
                return self.spread("i1", self.op(f"trunc i64 {self.slot('EXPLICIT_CLUSTER')} to i1"))
            case Reg(name) if element != "i1":
                special = special_register(self, name)
                return self._resize(special[0], special[1], element)
            case _:
                raise self._misplaced(operand)

    def _constant(self, value: int, float_bits: int, element: str) -> str:
        if element in FLOAT.values():
            width = BITS[element]
            if float_bits and float_bits != width:
                number = struct.unpack("<f" if float_bits == 32 else "<d", value.to_bytes(float_bits // 8, "little"))[0]
                return splat_float(element, number)
            if not float_bits and value:
                return splat_float(element, float(value))
            return self._float_from_bits(value, element)
        return self.integer(value, element)

    def _use_register(self, name: str, element: str) -> str:
        cached = self._values.get((name, element))
        if cached is not None:
            return cached
        own = self._element(name)
        value = self._values.get((name, own))
        if value is None:
            value = self._values[name, own] = self._loaded(name, own)
        value = self._resize(value, own, element)
        self._values[name, element] = value
        if element == "float" and name in self._registers.flushed:
            self._flushed[value] = value
        return value

    def _loaded(self, name: str, own: str) -> str:
        """A register from the warp's memory. Lanes that wait may have another value of a uniform one."""
        is_uniform, offset = name in self._registers.uniform, self._offset(name)
        if own != "i1":
            row = self.warp_pointer(offset)
            return self.spread_first(own, row, self.mask) if is_uniform else self.warp_load(vector(own), offset)
        bits = self.warp_load("i32", offset, 4)
        some = f"icmp ne i32 {self.op(f'and i32 {bits}, {self.mask}')}, 0" if is_uniform else ""
        return self.spread(own, self.op(some)) if is_uniform else self.lanes_of(bits)

    def _resize(self, value: str, own: str, element: str) -> str:
        if own == element:
            return value
        if element in FLOAT.values():
            integer = INTEGER[BITS[element]]
            return self.cast("bitcast", integer, self._resize(value, own, integer), element)
        if BITS[own] > BITS[element]:
            return self.cast("trunc", own, value, element)
        return self.cast("zext", own, value, element)

    def _misplaced(self, operand: Operand) -> UnsupportedInstruction:
        assert self.instruction is not None, operand
        return self.instruction.unsupported("its operands do not fit its form")

    def put(self, destination: Operand, value: str, element: str, signed: bool = False) -> None:
        """Write a register in the active lanes. A narrower value is extended, with its sign if `signed`."""
        if destination == SINK:
            return
        if not isinstance(destination, Reg) or destination.name not in self._registers.types:
            raise self._misplaced(destination)
        name = destination.name
        own = self._element(name)
        if (own == "i1") != (element == "i1"):
            raise self._misplaced(destination)
        as_float = (element, value) if element in FLOAT.values() and BITS[element] == BITS[own] else None
        if element in FLOAT.values():
            integer = INTEGER[BITS[element]]
            value, element = self.cast("bitcast", element, value, integer), integer
        if BITS[element] > BITS[own]:
            value = self.cast("trunc", element, value, own)
        elif BITS[element] < BITS[own]:
            value = self.cast("sext" if signed else "zext", element, value, own)
        if self._guard is not None:
            value = self.select(own, self._guard, value, self._use_register(name, own))
        for key in [k for k in self._values if k[0] == name]:
            del self._values[key]
        self._values[name, own] = value
        if as_float is not None and self._guard is None:
            self._values[name, as_float[0]] = as_float[1]
        self._changed(name, own)

    def _changed(self, name: str, own: str) -> None:
        """Called when a register has a new value of element type `own` in `_values`."""
        self._dirty[name] = own

    def place(self, name: str) -> int:
        """Offset in the warp's memory of a register's lanes between blocks."""
        return self._offset(name)

    def reserve(self, size_bytes: int) -> int:
        """Reserve bytes of the warp's memory for the kernel's duration, and return their offset."""
        offset = at.REGISTERS + self.register_bytes
        self.register_bytes += -(-size_bytes // 64) * 64
        return offset

    def home(self, operand: Operand) -> int:
        """Store a 32-bit register and return the offset of its lanes in the warp's memory, for the runtime to read."""
        if (
            not isinstance(operand, Reg)
            or operand.name not in self._registers.types
            or self._element(operand.name) != "i32"
        ):
            raise self._misplaced(operand)
        name = operand.name
        offset = self._offset(name)
        if self._dirty.pop(name, None):
            old = self.warp_load(vector("i32"), offset)
            self.warp_store(vector("i32"), self.select("i32", self._mask_lanes, self._values[name, "i32"], old), offset)
        return offset

    def changed_at_home(self, operand: Operand) -> None:
        """Declare that the runtime has written the register at its `home`."""
        assert isinstance(operand, Reg) and operand.name not in self._dirty
        for key in [k for k in self._values if k[0] == operand.name]:
            del self._values[key]

    def symbol_address(self, name: str) -> int:
        """Address of a variable, within its own space."""
        return self.storage.addresses[name][1]

    def own_tag(self, element: str) -> str:
        """The bits that addresses of the current block's shared memory have besides the offset."""
        tag = self.slot("SHARED_TAG")
        return self.spread(element, tag if element == "i64" else self.op(f"trunc i64 {tag} to {element}"))

    def own_offsets(self, operand: Operand) -> str:
        """The 32 offsets, i32, of `[base + offset]` in the block's own shared memory; too large for other addresses."""
        if not self.knows_clusters:
            return self.address(operand, "i32")
        if isinstance(operand, Address) and isinstance(operand.base, Symbol):
            return self.integer(self.symbol_address(operand.base.name) + operand.base.offset + operand.offset, "i32")
        return self.binary("sub", "i32", self.address(operand, "i32"), self.own_tag("i32"))

    def address(self, operand: Operand, element: str = "i64") -> str:
        """The 32 addresses of `[base + offset]`."""
        if not isinstance(operand, Address):
            raise self._misplaced(operand)
        base = self.use(operand.base, element)
        if operand.offset == 0:
            return base
        return self.binary("add", element, base, self.integer(operand.offset, element))

    # Subnormals -----------------------------------------------------------------------------------------------------

    def flush(self, value: str) -> str:
        """`.ftz` of 32 floats: subnormals become zeros of the same sign. Flushed registers are not checked again."""
        known = self._flushed.get(value)
        if known is not None:
            return known
        bits = self.cast("bitcast", "float", value, "i32")
        exponent = self.binary("and", "i32", bits, splat("i32", 0x7F800000))
        tiny = self.compare("eq", "i32", exponent, splat("i32", 0))
        zero = self.binary("and", "i32", bits, splat("i32", 0x80000000))
        flushed = self.cast("bitcast", "i32", self.select("i32", tiny, zero, bits), "float")
        self._flushed[value] = self._flushed[flushed] = flushed
        return flushed

    # Faults ---------------------------------------------------------------------------------------------------------

    def site(self, instruction: Instruction) -> int:
        """The number by which the runtime identifies this instruction."""
        if not self.sites or self.sites[-1] is not instruction:
            self.sites.append(instruction)
        return len(self.sites) - 1

    def first_check_of(self, members: Operand | None) -> bool:
        """Whether a literal member mask was not checked in this block yet; active lanes do not change within a block.

        None stands for all lanes, whether or not they have exited.
        """
        if not isinstance(members, Imm | None) or self._guard is not None:
            return True
        known = members in self._checked_members
        self._checked_members.add(members)
        return not known

    def stop_if(self, condition: str) -> None:
        """Return a fault if the scalar i1 `condition` holds; the runtime has recorded the cause."""
        go_on = self.fresh_label("ok")
        self.do(f"br i1 {condition}, label %faulted, label %{go_on}, !prof !0")
        self.label(go_on)

    def check(self, bad_lanes: str, kind: str, instruction: Instruction, detail: str = "0") -> None:
        """Fault if the scalar i32 `bad_lanes` is nonzero. `detail` is an i32 for the message."""
        site = self.number(self.site(instruction))
        bad, go_on = self.fresh_label("bad"), self.fresh_label("ok")
        condition = self.op(f"icmp ne i32 {bad_lanes}, 0")
        self.do(f"br i1 {condition}, label %{bad}, label %{go_on}, !prof !0")
        self.label(bad)
        self.runtime("fault", "%ctx", "%warp", str(at.FAULT[kind]), site, self.widen(bad_lanes), self.widen(detail))
        self.do("br label %faulted")
        self.label(go_on)
