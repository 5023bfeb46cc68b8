"""Emits counters of basic block executions, in kernels that are compiled for it; others contain no trace of it.

The instructions of a block are the same each time, so its number of entries, by warps and by lanes, counts them. A
predicated instruction counts for all lanes of its block: a warp issues it in any case.
"""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.codegen.warp_emitter import WarpEmitter


def count_execution(lanes: WarpEmitter, block: int) -> None:
    """The active lanes enter block number `block`: count its warps and lanes, and append a step to the warp's path."""
    if not lanes.instruments.instructions:
        return
    counters = lanes.op(f"inttoptr i64 {lanes.slot('BLOCK_COUNTERS')} to ptr")
    lanes.declarations.add("declare i32 @llvm.ctpop.i32(i32)")
    active = lanes.widen(lanes.op(f"call i32 @llvm.ctpop.i32(i32 {lanes.mask})"))
    for place, amount in enumerate(("1", active)):
        index = lanes.number(at.BLOCK_COUNTERS_PER_BLOCK * block + place)
        pointer = lanes.op(f"getelementptr i64, ptr {counters}, i64 {index}")
        total = lanes.op(f"add i64 {lanes.op(f'load i64, ptr {pointer}')}, {amount}")
        lanes.do(f"store i64 {total}, ptr {pointer}")
    _note_step(lanes, block)


def _note_step(lanes: WarpEmitter, block: int) -> None:
    """Write the block's number at PATH_NEXT, which grows up to PATH_LAST, where steps overwrite each other."""
    place, last = lanes.slot("PATH_NEXT"), lanes.slot("PATH_LAST")
    warp = lanes.op(f"add i64 {lanes.slot('FIRST_WARP')}, {lanes.slot('WARP_INDEX')}")
    high = lanes.op(f"shl i64 {warp}, {at.PATH_WARP_SHIFT}")
    step = lanes.op(f"or i64 {high}, {lanes.number(block)}")
    lanes.do(f"store i64 {step}, ptr {lanes.op(f'inttoptr i64 {place} to ptr')}")
    following = lanes.op(f"add i64 {place}, 8")
    is_room = lanes.op(f"icmp ult i64 {place}, {last}")
    following = lanes.op(f"select i1 {is_room}, i64 {following}, i64 {place}")
    lanes.do(f"store i64 {following}, ptr {lanes.slot_pointer('PATH_NEXT')}")
