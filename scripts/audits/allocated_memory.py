#!/usr/bin/env python3
"""Audit: the memory that attention allocates, as a published table has it, against what our plans allocate.

The table is that of "FlashAttention from Scratch: The IO-awareness paper explained through a working Triton kernel"
(code: github.com/Vinesh2929/FlashAttention-kernel-triton): float16, one head of 64 elements, beyond Q, K and V.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harness import Problem
from harness.model.discovery import discover
from harness.support.memory_units import MIB
from harness.text.tables import table

PRINTED = {512: ("1.06", "0.06"), 1024: ("4.12", "0.12"), 2048: ("16.25", "0.25"), 4096: ("64.50", "0.50"),
           8192: ("257.00", "1.00")}  # fmt: skip
"""N -> MB of standard attention and of FlashAttention."""


def allocated_mib(name: str, length: int, without: tuple[str, ...] = ()) -> str:
    """What the plan of a variant allocates beyond Q, K and V, in MiB with two decimals."""
    problem = Problem(heads=1, q_len=length, kv_len=length, head_dim=64, dtype="float16")
    plan = discover().registry.get(name).plan(problem)
    left_out = sum(buffer.size_bytes for buffer in plan.buffers if buffer.name in without)
    return f"{(plan.allocated_bytes(problem) - left_out) / MIB:.2f}"


def main() -> None:
    """Print the table."""
    cells = []
    for length, (standard, flash) in PRINTED.items():
        ours = (allocated_mib("three-pass-cupy", length), allocated_mib("fa2-cupy", length, without=("lse",)))
        holds = "yes" if ours == (standard, flash) else "no"
        more = (allocated_mib("fa2-cupy", length), allocated_mib("fa1-cupy", length))
        cells.append([str(length), standard, ours[0], flash, ours[1], holds, *more])
    headers = ["N", "printed:\nstandard", "three-pass:\nS, P, O", "printed:\nflash", "fa2:\nO", "holds"]
    print("MiB that are allocated beyond Q, K and V; 1 head, head_dim 64, float16\n")
    print(table([*headers, "fa2:\nO, lse", "fa1: O, O in\nfloat32, l, m"], cells, [True] * 5 + [False, True, True]))


if __name__ == "__main__":
    main()
