"""Data-center Blackwell (compute capability 10.0): what algorithms here that run on tcgen05 and tensor memory share.

The CUDA files, in the order in which kernels use them, behind those of `_hopper` for copies and barriers:

- tensor_memory.cuh: allocation, loads and stores of tensor memory
- products.cuh: products of 128 rows that one thread issues
- events.cuh: barriers between roles
- launch_control.cuh: blocks that take the work of others
- exponentials.cuh: arithmetic on pairs of floats, powers of two by a polynomial
"""

from __future__ import annotations

from harness import Problem
from variants._mma import unsupported_on_tensor_cores

ARCH = "sm_100a"
"""The architecture that has tcgen05."""
LANES = 128
"""Lanes of tensor memory: rows of a product, one for each thread of a warpgroup."""
HEAD_DIMS = (64, 128)
"""Elements of rows: one or two boxes of 128 bytes, of which S and O of two tiles leave room in tensor memory."""


def unsupported_on_blackwell(problem: Problem) -> str | None:
    """Why no variant here can take the problem, or None."""
    reason = unsupported_on_tensor_cores(problem)
    if reason is None and problem.head_dim not in HEAD_DIMS:
        return f"head_dim is {problem.head_dim}; choose {' or '.join(map(str, HEAD_DIMS))}"
    return reason
