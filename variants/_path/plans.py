"""Plans and figures that several steps on CUDA cores share."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Buffer, Figure, Launch, Numerics, Plan, Problem
from variants._path import F32, HEAD_DIM

ROW = HEAD_DIM * F32
"""Bytes of a row of Q, K, V or O."""
NUMERICS = Numerics(scores="float32", weights="float32", sums="nearest", one_score=True)

BYTES = Figure(name="bytes in all", kind="bytes", unit="bytes")
BYTES_OF_S = Figure(name="bytes of S and P", kind="bytes", unit="bytes", buffer="S")
BYTES_OF_K = Figure(name="bytes of K", kind="bytes", unit="bytes", buffer="K")
BYTES_OF_V = Figure(name="bytes of V", kind="bytes", unit="bytes", buffer="V")
BYTES_OF_O = Figure(name="bytes of O", kind="bytes", unit="bytes", buffer="O")
SCRATCH = Figure(name="scratch memory", kind="scratch_bytes", unit="bytes")
LAUNCHES = Figure(name="launches", kind="launches")
BLOCKS = Figure(name="blocks", kind="blocks")
EXPONENTIALS = Figure(name="exponentials", kind="exponentials", unit="warp instructions")


def three_kernels(p: Problem, kernels: tuple[Any, ...]) -> Plan:
    """`scores`, `softmax` and `output`, a warp per row, with S in memory between them."""
    scores, softmax, output = kernels
    n, rows, warp = np.int32(p.kv_len), (p.q_len,), (32,)
    return Plan(
        (
            Launch(scores, rows, warp, ("Q", "K", "S", n, np.float32(p.tau))),
            Launch(softmax, rows, warp, ("S", n)),
            Launch(output, rows, warp, ("S", "V", "O", n)),
        ),
        (Buffer("S", (p.q_len, p.kv_len), "float32"),),
    )


def one_kernel(p: Problem, kernels: tuple[Any, ...]) -> Plan:
    """`attention`, a warp per row."""
    (attention,) = kernels
    args = ("Q", "K", "V", "O", np.int32(p.kv_len), np.float32(p.tau))
    return Plan((Launch(attention, (p.q_len,), (32,), args),))
