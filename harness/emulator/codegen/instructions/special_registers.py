"""Emits special registers such as `%tid`, `%ctaid` and `%laneid` (PTX ISA, chapter 10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.emulator.abi import layout as at
from harness.support.errors import UnsupportedInstruction

if TYPE_CHECKING:
    from harness.emulator.codegen.warp_emitter import WarpEmitter

_SLOTS = {
    "%ntid.x": "NTID_X",
    "%ntid.y": "NTID_Y",
    "%ntid.z": "NTID_Z",
    "%ctaid.x": "CTAID_X",
    "%ctaid.y": "CTAID_Y",
    "%ctaid.z": "CTAID_Z",
    "%nctaid.x": "NCTAID_X",
    "%nctaid.y": "NCTAID_Y",
    "%nctaid.z": "NCTAID_Z",
    "%warpid": "WARP_INDEX",
    "%cluster_ctarank": "CLUSTER_RANK",
    "%cluster_nctarank": "CLUSTER_SIZE",
}
_SLOTS |= {
    f"%{name}.{axis}": f"{name.upper()}_{axis.upper()}"
    for name in ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
    for axis in "xyz"
}
_THREADS = {"%tid.x": at.TID_X, "%tid.y": at.TID_Y, "%tid.z": at.TID_Z}
_VALUES: dict[str, Callable[[int], int]] = {
    "%laneid": lambda lane: lane,
    "%lanemask_eq": lambda lane: 1 << lane,
    "%lanemask_lt": lambda lane: (1 << lane) - 1,
    "%lanemask_le": lambda lane: (2 << lane) - 1,
    "%lanemask_gt": lambda lane: 0xFFFFFFFF & ~((2 << lane) - 1),
    "%lanemask_ge": lambda lane: 0xFFFFFFFF & ~((1 << lane) - 1),
}
_TABLES = {
    name: "<" + ", ".join(f"i32 {of_lane(lane)}" for lane in range(32)) + ">" for name, of_lane in _VALUES.items()
}
LANE_ID = _TABLES["%laneid"]
_CONSTANTS = {"%smid": 0, "%nsmid": 1, "%gridid": 0}
_CONSTANTS |= {"%nwarpid": 64}  # maximum warps per multiprocessor of sm_80 and sm_90
_GRID_BARRIER = {"%envreg1": 32, "%envreg2": 0}
"""Shift of the halves of the address of the grid's barrier, which `grid.sync()` uses."""
_CLOCKS = ("%clock", "%clock64", "%globaltimer")
"""Clocks advance by one per instruction of the warp: monotonic, and the same in every run."""


def special_register(lanes: WarpEmitter, name: str) -> tuple[str, str]:
    """The register's 32 lanes and their element type. Raises `UnsupportedInstruction` for unsupported registers."""
    if name in _THREADS:
        return lanes.warp_load("<32 x i32>", _THREADS[name]), "i32"
    if name in _SLOTS:
        scalar = lanes.op(f"trunc i64 {lanes.slot(_SLOTS[name])} to i32")
        return lanes.spread("i32", scalar), "i32"
    if name == "%dynamic_smem_size":  # from which Numba computes the length of cuda.shared.array(0, ...)
        size_bytes = lanes.op(f"sub i64 {lanes.slot('SHARED_SIZE')}, {lanes.storage.static_shared_bytes}")
        return lanes.spread("i32", lanes.op(f"trunc i64 {size_bytes} to i32")), "i32"
    if name in _TABLES:
        return _TABLES[name], "i32"
    if name in _CONSTANTS:
        return f"splat (i32 {_CONSTANTS[name]})", "i32"
    if name in _CLOCKS:
        now = lanes.op(f"sub i64 {lanes.slot('STEPS')}, {lanes.instructions_left}")
        return lanes.spread("i64", now), "i64"
    if name in _GRID_BARRIER:
        half = lanes.op(f"lshr i64 {lanes.slot('GRID_BARRIER')}, {_GRID_BARRIER[name]}")
        return lanes.spread("i32", lanes.op(f"trunc i64 {half} to i32")), "i32"
    if lanes.instruction is not None:
        raise lanes.instruction.unsupported(f"the register '{name}', which is neither declared nor emulated")
    raise UnsupportedInstruction(f"the emulator does not support the register '{name}'")
