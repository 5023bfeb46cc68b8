"""PTX as a person writes it, in a variant: with one key the softmax is 1, so each row of O is the row of V."""

from __future__ import annotations

import numpy as np

from harness import Launch, Plan, Problem, PtxKernel, Traffic, Variant

TEXT = r"""
.version 8.0
.target sm_80
.address_size 64

.visible .entry copy_row(
    .param .u64 .ptr .global .align 16 source,  // V
    .param .u64 .ptr .global .align 16 result,  // O
    .param .u32 elements
)
{
    .reg .pred %outside;
    .reg .b32 %i, %n, %value;
    .reg .b64 %from, %to, %offset;

    mov.u32 %i, %tid.x;
    ld.param.u32 %n, [elements];
    setp.ge.u32 %outside, %i, %n;
    @%outside bra done;
    ld.param.u64 %from, [source];
    ld.param.u64 %to, [result];
    mul.wide.u32 %offset, %i, 4;
    add.s64 %from, %from, %offset; add.s64 %to, %to, %offset;
    ld.global.b32 %value, [%from];
    st.global.b32 [%to], %value;
done:
    ret;
}
"""

KERNEL = PtxKernel(TEXT, "copy_row")


def planner(elements_too_many: int = 0):
    def plan(problem: Problem) -> Plan:
        elements = np.int32(problem.heads * problem.head_dim + elements_too_many)
        return Plan((Launch(KERNEL, (1,), (128,), ("V", "O", elements)),))

    return plan


def supports(problem: Problem) -> str | None:
    one = problem.batch == problem.q_len == problem.kv_len == problem.group == 1
    small = problem.dtype == "float32" and problem.heads * problem.head_dim <= 128
    return None if one and small else "it is written for one row, one key and at most 128 elements of float32"


def claim(problem: Problem) -> Traffic:
    moved_bytes = 32 * -(-problem.heads * problem.head_dim * 4 // 32)
    return Traffic(moved_bytes, moved_bytes)


def register(registry):
    registry.add(Variant(name="one-key", backend="ptx", plan=planner(), supports=supports, claim=claim))
    registry.add(Variant(name="one-key-strays", backend="ptx", plan=planner(1), supports=supports))
