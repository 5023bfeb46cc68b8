"""Which part of a multiprocessor an instruction of PTX keeps busy: a kind for each row of `ptx.opcodes.OPCODES`.

Types and spaces refine it, see `kind_of`. PTX is not what runs: ptxas merges address arithmetic into loads and stores,
drops most moves and makes sequences of some instructions (a division, a conversion of 64 bits).
"""

from __future__ import annotations

from functools import cache

from harness.emulator.abi import layout as at
from harness.execution.traffic.instruction_counts import (
    BARRIER,
    CONTROL,
    CONVERSION,
    FP16,
    FP32,
    FP64,
    INTEGER,
    MEMORY,
    MOVE,
    SHARED,
    SHUFFLE,
    SPECIAL,
    TENSOR,
)
from harness.ptx.instructions import Instruction
from harness.ptx.opcodes import matrix_shape


def _rows(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


KINDS: dict[str, str] = {
    **_rows(INTEGER, "add.int sub.int mul.int mul24 div.int rem.int min.int max.int mad.int mad24 sad dp4a dp2a"),
    **_rows(
        INTEGER, "addc subc madc abs.int neg.int not cnot popc clz brev bfind and or xor shl shr bmsk shf prmt bfe"
    ),
    **_rows(INTEGER, "bfe bfi lop3 copysign min.float max.float neg.float abs.float testp setp set selp slct isspacep"),
    **_rows(
        INTEGER, "min.half max.half neg.half abs.half mapa getctarank createpolicy clusterlaunchcontrol.query_cancel"
    ),
    **_rows(INTEGER, "szext vadd vsub vabsdiff vmin vmax vshl vshr vset vmad vadd2 vsub2 vavrg2 vabsdiff2 vmin2 vmax2"),
    **_rows(INTEGER, "vset2 vadd4 vsub4 vavrg4 vabsdiff4 vmin4 vmax4 vset4"),
    **_rows(FP32, "add.float sub.float mul.float fma.float mad.float add.mixed sub.mixed fma.mixed"),
    **_rows(FP32, "add.pair sub.pair mul.pair fma.pair"),
    **_rows(FP16, "add.half sub.half mul.half fma.half"),
    **_rows(SPECIAL, "div.float rcp.float sqrt.float rsqrt.float ex2.float lg2.float sin.float cos.float tanh.float"),
    **_rows(SPECIAL, "ex2.half tanh.half"),
    **_rows(MOVE, "mov cvta"),
    **_rows(CONVERSION, "cvt cvt.pack"),
    **_rows(MEMORY, "ld ldu st atom red cp prefetch prefetchu discard applypriority cp.bulk_load cp.bulk_store"),
    **_rows(MEMORY, "cp.bulk_reduction cp.bulk_between cp.bulk_group cp.bulk_prefetch st.async red.async"),
    **_rows(MEMORY, "tex tld4 suld sust"),
    **_rows(MEMORY, "wmma.load wmma.store tensormap.replace tensormap.cp_fenceproxy"),
    **_rows(SHARED, "ldmatrix stmatrix movmatrix"),
    **_rows(TENSOR, "mma wmma.mma wgmma.mma_async tcgen05.mma"),
    **_rows(SHUFFLE, "activemask elect vote match redux shfl"),
    **_rows(BARRIER, "bar barrier barrier.cluster_arrive barrier.cluster_wait barrier.result cp.mbarrier membar fence"),
    **_rows(BARRIER, "mbarrier.init mbarrier.inval mbarrier.expect_tx mbarrier.complete_tx mbarrier.arrive"),
    **_rows(BARRIER, "mbarrier.arrive_drop mbarrier.test_wait mbarrier.try_wait mbarrier.pending_count"),
    **_rows(
        BARRIER, "wgmma.fence wgmma.commit_group wgmma.wait_group tcgen05.commit tcgen05.wait::ld tcgen05.wait::st"
    ),
    **_rows(
        BARRIER, "tcgen05.fence::before_thread_sync tcgen05.fence::after_thread_sync tcgen05.alloc tcgen05.dealloc"
    ),
    **_rows(BARRIER, "tcgen05.relinquish_alloc_permit clusterlaunchcontrol.try_cancel"),
    **_rows(SHARED, "tcgen05.ld tcgen05.st tcgen05.cp tcgen05.shift"),
    **_rows(CONTROL, "call.vprintf call.malloc call.free call.nowhere call.overflow call.__assertfail"),
    **_rows(CONTROL, "bra brx ret exit trap brkpt pmevent griddepcontrol setmaxnreg nanosleep"),
}
"""Row -> one of `harness.execution.traffic.instruction_counts.KINDS`."""

_UNTIMED_SPACES = ("param", "const")
_WIDE = (MOVE, MEMORY, SHARED)
"""Kinds that move 64-bit floating-point numbers like any other 64 bits."""


_DEPTHS = {
    "kind::tf32": 8, "kind::f16": 16, "kind::i8": 32, "kind::f8f6f4": 32, "kind::mxf8f6f4": 32, "kind::mxf4": 64,
    "kind::mxf4nvf4": 64,
}  # fmt: skip
"""K of a `tcgen05.mma`: the elements in 32 bytes, of which those of 6 bits and of `f8f6f4` have one each."""


def kind_of(instruction: Instruction) -> str:
    """The kind of one instruction; that of its row, `integer` where a new row has none yet."""
    return _kind(instruction.row_name, instruction.modifiers)


@cache
def _kind(row: str, modifiers: tuple[str, ...]) -> str:
    kind = KINDS.get(row, INTEGER)
    if "f64" in modifiers and kind not in _WIDE:
        return FP64
    if kind == MEMORY:
        if any(word in _UNTIMED_SPACES or word.startswith("param") for word in modifiers[:2]):
            return MOVE
        if row != "cp" and any(word.startswith("shared") for word in modifiers):
            return SHARED
        if row == "cp" and {"commit_group", "wait_group", "wait_all"} & set(modifiers):
            return BARRIER
    if row == "bar" and "warp" in modifiers:
        return SHUFFLE
    return kind


def tensor_memory_flops(form: str, results: int) -> int:
    """Multiplications and additions of `tcgen05.mma` instructions that compute so many elements of D in all."""
    return 2 * results * next(depth for kind, depth in _DEPTHS.items() if kind in form.split("."))


def product_flops(instruction: Instruction) -> int:
    """Multiplications and additions of one warp's execution of a matrix product; 0 of anything else.

    The shape of `tcgen05.mma` is known at run time only, see `tensor_memory_flops`.
    """
    if kind_of(instruction) != TENSOR:
        return 0
    shape = matrix_shape(instruction.modifiers)
    if shape is None:
        return 0
    flops = 2 * shape.rows * shape.columns * shape.depth
    return flops // at.WARPGROUP_WARPS if instruction.row_name == "wgmma.mma_async" else flops
