"""Table of opcodes with one row each. All code that distinguishes opcodes by what they do uses this table.

It is used for the block graph and liveness (`ptx.blocks`), for checking the number of operands before code is emitted
(`codegen`), and by traffic counts, the sanitizer, the cache model and the messages of faults. The families of `codegen`
define how an opcode computes its result. A test fails if an opcode has a row and no emitter, or an emitter and no row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Literal, NamedTuple

from harness.ptx.types import TYPES

AccessKind = Literal["load", "store", "atomic"]


@dataclass(frozen=True)
class MemoryAccess:
    """How an opcode accesses memory."""

    in_global: AccessKind | None
    """Kind of access in global and local memory; None if the opcode accesses only shared memory."""
    in_shared: AccessKind
    asynchronous: bool = False
    """Whether the access completes only after a wait. Such an opcode reads one space and writes another."""
    name: str = ""
    """Name of the access in messages; empty to derive it from the kind."""

    @property
    def verb(self) -> str:
        """Verb for messages."""
        if self.asynchronous:
            return self.name or ("operand read" if self.in_global is None else "asynchronous copy")
        return self.name or self.in_shared


LOAD = MemoryAccess("load", "load")
STORE = MemoryAccess("store", "store")
ATOMIC = MemoryAccess("atomic", "atomic")
LOAD_ROWS = MemoryAccess(None, "load")
STORE_ROWS = MemoryAccess(None, "store")
"""Access to rows of a matrix. A lane has the address of a row, not of the elements that it loads or stores."""
COPY = MemoryAccess("load", "store", asynchronous=True)
BULK_LOAD = MemoryAccess("load", "store", asynchronous=True)
BULK_STORE = MemoryAccess("store", "load", asynchronous=True)
BULK_REDUCTION = MemoryAccess("atomic", "load", asynchronous=True)
BETWEEN_BLOCKS = MemoryAccess(None, "store", asynchronous=True, name="asynchronous copy")
ASYNC_STORE = MemoryAccess(None, "store", asynchronous=True, name="asynchronous store")
ASYNC_REDUCTION = MemoryAccess(None, "atomic", asynchronous=True, name="asynchronous reduction")
MBARRIER = MemoryAccess(None, "atomic")
RESPONSE = MemoryAccess(None, "store", asynchronous=True, name="response")
MODIFY_MAP = MemoryAccess("atomic", "atomic", name="modification of a tensor map")
COPY_MAP = MemoryAccess("store", "load", name="copy of a tensor map")
TEXTURE = MemoryAccess("load", "load", name="texture read")
SURFACE_LOAD = MemoryAccess("load", "load", name="surface load")
SURFACE_STORE = MemoryAccess("store", "store", name="surface store")
TENSOR_ADDRESS = MemoryAccess(None, "store", name="store of an address")
TENSOR_LOAD = MemoryAccess(None, "load", asynchronous=True, name="load")
TENSOR_STORE = MemoryAccess(None, "store", asynchronous=True, name="store")
TENSOR_FREE = MemoryAccess(None, "store", name="deallocation")
TENSOR_PRODUCT = MemoryAccess(None, "load", asynchronous=True, name="product")
TENSOR_COPY = MemoryAccess(None, "load", asynchronous=True, name="copy")
TENSOR_SHIFT = MemoryAccess(None, "store", asynchronous=True, name="shift")
"""Accesses to tensor memory, of which a product and a copy also read shared memory."""
OPERANDS_IN_SHARED = MemoryAccess(None, "load", asynchronous=True)


class Flow(Enum):
    """Where a warp continues after an opcode."""

    NEXT = "to the next instruction"
    BRANCH = "to a label, which ends the block"
    LEAVE = "out of the function, which ends the block"
    BARRIER = "to the scheduler, until others have arrived; but for its `.warp` forms, whose lanes go on together"
    YIELD = "to the scheduler, so that others have a turn"
    WARPGROUP = "to the scheduler, until the other three warps of the warpgroup are there"
    CLUSTER = "to the scheduler, until all warps of the cluster have arrived"


@dataclass(frozen=True)
class Opcode:
    """A row of the table."""

    operands: tuple[int, ...] = ()
    """Permitted numbers of operands, including the destination. Empty if the emitter checks the number."""
    memory: MemoryAccess | None = None
    """Memory access; None if the opcode does not access memory visible to a kernel."""
    flow: Flow = Flow.NEXT
    writes: bool = True
    """Whether the first operand is the destination."""
    reads_carry: bool = False
    """Whether the opcode adds the carry of a preceding `.cc`."""
    updates: bool = False
    """Whether the opcode also reads its destination."""
    async_proxy: bool = False
    """Whether the opcode needs the state of operations in flight (`launch/worker.py`)."""


UNKNOWN = Opcode()
"""Row of unknown opcodes. They have no emitter, so they are rejected when code is emitted."""
BARRIER_RESULT = "barrier.result"
"""Pseudo-opcode after a `barrier.red` that reads the result once all warps have arrived. It cannot occur in a text,
because the parser ends an opcode at its first dot."""


def _rows(names: str, *operands: int, **facts: MemoryAccess | Flow | bool) -> dict[str, Opcode]:
    """Return a table in which all of these names have the same row."""
    return dict.fromkeys(names.split(), Opcode(operands, **facts))  # type: ignore[arg-type]


# The types determine `add.int`, `add.float`, `add.half`, `add.pair` (f32x2) and `add.mixed` (f32 and a 16-bit float);
# the first modifier determines `wmma.load`. `_bulk_kind` determines `cp.bulk_load`.
OPCODES: dict[str, Opcode] = {
    # Integers and bits
    **_rows("add.int sub.int mul.int mul24 div.int rem.int min.int max.int", 3),
    **_rows("mad.int mad24 sad dp4a dp2a", 4),
    **_rows("addc subc", 3, reads_carry=True),
    **_rows("madc", 4, reads_carry=True),
    **_rows("abs.int neg.int not cnot popc clz brev bfind", 2),
    **_rows("and or xor shl shr bmsk", 3),
    **_rows("shf prmt bfe", 4),
    **_rows("bfi", 5),
    **_rows("szext", 3),
    **_rows("vadd vsub vabsdiff vmin vmax vshl vshr vset", 3, 4),
    **_rows("vmad vadd2 vsub2 vavrg2 vabsdiff2 vmin2 vmax2 vset2", 4),
    **_rows("vadd4 vsub4 vavrg4 vabsdiff4 vmin4 vmax4 vset4", 4),
    **_rows("lop3", 5, 6),
    # Floats
    **_rows("add.float sub.float mul.float div.float copysign", 3),
    **_rows("fma.float mad.float", 4),
    **_rows("min.float max.float", 3, 4),
    **_rows("rcp.float sqrt.float rsqrt.float ex2.float lg2.float sin.float cos.float tanh.float", 2),
    **_rows("neg.float abs.float testp", 2),
    **_rows("add.pair sub.pair mul.pair add.mixed sub.mixed", 3),
    **_rows("fma.pair fma.mixed", 4),
    **_rows("add.half sub.half mul.half min.half max.half", 3),
    **_rows("fma.half", 4),
    **_rows("ex2.half tanh.half neg.half abs.half", 2),
    # Comparing, choosing, converting, moving
    **_rows("setp set", 3, 4),
    **_rows("selp slct", 4),
    **_rows("mov cvta isspacep", 2),
    **_rows("cvt", 2, 3),
    **_rows("cvt.pack", 3, 4),
    # Memory
    **_rows("ld ldu", 2, 3, memory=LOAD),
    **_rows("st", 2, 3, memory=STORE, writes=False),
    **_rows("atom", 3, 4, 5, memory=ATOMIC),
    **_rows("red", 2, 3, memory=ATOMIC, writes=False),
    **_rows("cp", memory=COPY, writes=False),
    **_rows("cp.mbarrier", 1, memory=MBARRIER, writes=False, async_proxy=True),
    **_rows("createpolicy", 1, 2, 4),
    **_rows("cp.bulk_load", memory=BULK_LOAD, writes=False, async_proxy=True),
    **_rows("cp.bulk_store", memory=BULK_STORE, writes=False, async_proxy=True),
    **_rows("cp.bulk_reduction", memory=BULK_REDUCTION, writes=False, async_proxy=True),
    **_rows("cp.bulk_between", memory=BETWEEN_BLOCKS, writes=False, async_proxy=True),
    **_rows("st.async", 3, memory=ASYNC_STORE, writes=False, async_proxy=True),
    **_rows("red.async", 3, memory=ASYNC_REDUCTION, writes=False, async_proxy=True),
    **_rows("cp.bulk_group cp.bulk_prefetch", writes=False, async_proxy=True),
    **_rows("mbarrier.init mbarrier.inval", memory=MBARRIER, writes=False, async_proxy=True),
    **_rows("mbarrier.expect_tx mbarrier.complete_tx", 2, memory=MBARRIER, writes=False, async_proxy=True),
    **_rows("mbarrier.arrive mbarrier.arrive_drop", 2, 3, memory=MBARRIER, async_proxy=True),
    **_rows("mbarrier.test_wait mbarrier.try_wait", 3, 4, memory=MBARRIER, flow=Flow.YIELD, async_proxy=True),
    **_rows("mbarrier.pending_count", 2),
    **_rows("clusterlaunchcontrol.try_cancel", 2, memory=RESPONSE, writes=False, async_proxy=True),
    **_rows("clusterlaunchcontrol.query_cancel", 2),
    **_rows("tensormap.replace", 2, 3, memory=MODIFY_MAP, writes=False, async_proxy=True),
    **_rows("tensormap.cp_fenceproxy", 3, memory=COPY_MAP, writes=False),
    **_rows("mapa", 3),
    **_rows("getctarank", 2),
    **_rows("prefetch prefetchu discard applypriority membar fence", writes=False),
    **_rows("tex", 2, 3, 4, memory=TEXTURE),
    **_rows("tld4", 2, memory=TEXTURE),
    **_rows("suld", 2, memory=SURFACE_LOAD),
    **_rows("sust", 2, memory=SURFACE_STORE, writes=False),
    # Matrices
    **_rows("ldmatrix", 2, memory=LOAD_ROWS),
    **_rows("stmatrix", 2, memory=STORE_ROWS, writes=False),
    **_rows("wmma.load", memory=LOAD),
    **_rows("wmma.store", memory=STORE, writes=False),
    **_rows("movmatrix", 2),
    **_rows("mma", 4),
    **_rows("wmma.mma"),
    **_rows("wgmma.mma_async", memory=OPERANDS_IN_SHARED, updates=True, async_proxy=True),
    **_rows("wgmma.fence", writes=False),
    **_rows("wgmma.commit_group", writes=False, async_proxy=True),
    **_rows("wgmma.wait_group", 1, flow=Flow.WARPGROUP, writes=False, async_proxy=True),
    # Blackwell's tensor cores
    **_rows("tcgen05.alloc", 2, memory=TENSOR_ADDRESS, flow=Flow.WARPGROUP, writes=False, async_proxy=True),
    **_rows("tcgen05.dealloc", 2, memory=TENSOR_FREE, writes=False, async_proxy=True),
    **_rows("tcgen05.relinquish_alloc_permit", 0, writes=False, async_proxy=True),
    **_rows("tcgen05.ld", 2, 3, memory=TENSOR_LOAD, async_proxy=True),
    **_rows("tcgen05.st", 2, 3, memory=TENSOR_STORE, writes=False, async_proxy=True),
    **_rows("tcgen05.wait::ld tcgen05.wait::st", 0, writes=False, async_proxy=True),
    **_rows("tcgen05.fence::before_thread_sync tcgen05.fence::after_thread_sync", 0, writes=False, async_proxy=True),
    **_rows("tcgen05.mma", memory=TENSOR_PRODUCT, writes=False, async_proxy=True),
    **_rows("tcgen05.cp", 2, memory=TENSOR_COPY, writes=False, async_proxy=True),
    **_rows("tcgen05.shift", 1, memory=TENSOR_SHIFT, writes=False, async_proxy=True),
    **_rows("tcgen05.commit", 1, 2, memory=MBARRIER, writes=False, async_proxy=True),
    # Lanes of a warp, warps of a block
    **_rows("activemask", 1),
    **_rows("elect", 2),
    **_rows("vote match redux", 3),
    **_rows("shfl", 5),
    **_rows("bar barrier", flow=Flow.BARRIER, writes=False),
    **_rows(BARRIER_RESULT),
    **_rows("barrier.cluster_arrive", writes=False),
    **_rows("barrier.cluster_wait", flow=Flow.CLUSTER, writes=False),
    **_rows("nanosleep", 1, flow=Flow.YIELD, writes=False),
    # Control
    **_rows("bra brx", flow=Flow.BRANCH, writes=False),
    **_rows("ret exit", flow=Flow.LEAVE, writes=False),
    **_rows("call.vprintf", 3),
    **_rows("call.malloc", 2),
    **_rows("call.free call.nowhere", 1, writes=False),
    **_rows("call.overflow", writes=False),
    **_rows("call.__assertfail", 5, writes=False),
    **_rows("trap brkpt pmevent griddepcontrol setmaxnreg", writes=False),
}


@cache
def row_name(opcode: str, modifiers: tuple[str, ...]) -> str:
    """Return the name of an instruction's row in `OPCODES`, or the opcode if there is no row."""
    if opcode == "cp" and "bulk" in modifiers:
        return f"cp.bulk_{_bulk_kind(modifiers)}"
    if opcode == "cp" and "mbarrier" in modifiers:
        return "cp.mbarrier"
    if opcode in ("st", "red") and "async" in modifiers:
        return f"{opcode}.async"
    if opcode == "cvt" and "pack" in modifiers:
        return "cvt.pack"
    if opcode == "barrier" and modifiers[:1] and modifiers[0] == "cluster":
        return f"barrier.cluster_{'wait' if 'wait' in modifiers else 'arrive'}"
    if opcode in OPCODES:
        return opcode
    for word in (*modifiers[:1], _kind(modifiers)):
        if f"{opcode}.{word}" in OPCODES:
            return f"{opcode}.{word}"
    return opcode


@cache
def facts_of(opcode: str, modifiers: tuple[str, ...]) -> Opcode:
    """Return the row of an instruction; `UNKNOWN` if there is none."""
    return OPCODES.get(row_name(opcode, modifiers), UNKNOWN)


def _bulk_kind(modifiers: Sequence[str]) -> str:
    """Return the kind of a `cp.async.bulk`. The first space among the modifiers of a copy is the destination's."""
    if "shared::cluster" in modifiers and "shared::cta" in modifiers:
        return "between"
    if "reduce" in modifiers:
        return "reduction"
    if {"commit_group", "wait_group"} & set(modifiers):
        return "group"
    if "prefetch" in modifiers:
        return "prefetch"
    space = next((word for word in modifiers if word.startswith(("shared", "global"))), "shared")
    return "store" if space == "global" else "load"


def _kind(modifiers: Sequence[str]) -> str:
    """Return `int`, `half`, `float`, `pair` or `mixed`, the kind of the types among the modifiers."""
    types = [TYPES[m] for m in modifiers if m in TYPES]
    if not types or not types[0].is_float:
        return "int"
    if types[0].bits == 16:
        return "half"
    if types[0].name == "f32x2":
        return "pair"
    return "mixed" if [each.bits for each in types if each.is_float] == [32, 16] else "float"


_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")


class MatrixShape(NamedTuple):
    """Extents of a matrix product. D has `rows` x `columns` elements, each a sum of `depth` products."""

    word: str
    """Modifier that names the shape, such as `m16n8k16`."""
    rows: int
    columns: int
    depth: int


def matrix_shape(modifiers: Sequence[str]) -> MatrixShape | None:
    """Return the shape among the modifiers of a matrix product; None if there is none."""
    match = next((match for word in modifiers if (match := _SHAPE.fullmatch(word))), None)
    return None if match is None else MatrixShape(match[0], int(match[1]), int(match[2]), int(match[3]))
