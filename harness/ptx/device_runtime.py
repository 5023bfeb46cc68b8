"""The functions of NVIDIA's device runtime (cudadevrt) that compilers call and leave to the linker, as PTX."""

from __future__ import annotations

from functools import cache

from harness.ptx.instructions import Function
from harness.ptx.parsing.parser import parse

_GRID_SCOPE = 1
_TEXT = f"""
.func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope)
{{
    .reg .b32 %low, %high, %scope;
    .reg .b64 %address;
    .reg .pred %other;
    mov.u32 %high, %envreg1;
    mov.u32 %low, %envreg2;
    mov.b64 %address, {{%low, %high}};
    ld.param.u32 %scope, [scope];
    setp.ne.u32 %other, %scope, {_GRID_SCOPE};
    @%other mov.u64 %address, 0;
    st.param.b64 [handle], %address;
    ret;
}}
.func (.param .b32 status) cudaCGSynchronize(.param .b64 handle, .param .b32 flags)
{{
    .reg .b32 %x, %y, %z, %blocks, %mine, %round, %arrived;
    .reg .b64 %address;
    .reg .pred %p;
    ld.param.u64 %address, [handle];
    setp.eq.u64 %p, %address, 0;
    @%p trap;
    barrier.sync 0;
    mov.u32 %x, %tid.x;
    mov.u32 %y, %tid.y;
    mov.u32 %z, %tid.z;
    or.b32 %x, %x, %y;
    or.b32 %x, %x, %z;
    setp.ne.u32 %p, %x, 0;
    @%p bra MET;
    mov.u32 %x, %nctaid.x;
    mov.u32 %y, %nctaid.y;
    mov.u32 %z, %nctaid.z;
    mul.lo.u32 %blocks, %x, %y;
    mul.lo.u32 %blocks, %blocks, %z;
    atom.add.acq_rel.gpu.u32 %mine, [%address+4], 1;
    div.u32 %round, %mine, %blocks;
    add.u32 %round, %round, 1;
    mul.lo.u32 %round, %round, %blocks;
WAIT:
    ld.acquire.gpu.u32 %arrived, [%address+4];
    sub.u32 %arrived, %arrived, %round;
    setp.lt.s32 %p, %arrived, 0;
    @%p bra WAIT;
MET:
    barrier.sync 0;
    st.param.b32 [status], 0;
    ret;
}}
"""
"""`grid.sync()` of Numba: block `i` of `n` to arrive waits until the counter reaches the next multiple of `n`."""

RUNTIME_FUNCTIONS = ("cudaCGGetIntrinsicHandle", "cudaCGSynchronize")
"""Names of these functions."""


@cache
def runtime_functions() -> dict[str, Function]:
    """The parsed functions by name."""
    return parse(_TEXT).functions
