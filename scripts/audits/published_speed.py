#!/usr/bin/env python3
"""Audit: published times of attention on a T4, against the floor that bytes and arithmetic set.

The times are those of "FlashAttention from Scratch: The IO-awareness paper explained through a working Triton kernel":
float16, batch 1, head_dim 64. It does not say how many heads; one is what its table of memory fits.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harness import Problem
from harness.support.gpu_data_sheets import gpu
from harness.text.tables import table

PRINTED_MS = {
    512: (0.059, 0.239, 0.167, 0.064), 1024: (0.080, 0.441, 0.264, 0.123), 2048: (0.290, 1.410, 1.171, 0.144),
    4096: (1.062, 3.929, 2.082, 0.363), 8192: (4.268, 13.604, 9.159, 1.582),
}  # fmt: skip
"""N -> standard attention, the kernel of the article, the same under a causal mask, PyTorch's own."""


def main() -> None:
    """Print the table."""
    t4 = gpu("t4")
    cells = []
    for length, (standard, flash, causal, _) in PRINTED_MS.items():
        problem = Problem(heads=1, q_len=length, kv_len=length, dtype="float16")
        # Each tensor once, as if L2 caught all else: S and P written and read, Q, K, V read, O written.
        moved = 4 * length * length * problem.itemsize_bytes + problem.compulsory_bytes
        by_bytes = 1e3 * moved / t4.memory_bytes_per_s
        by_flops = 1e3 * problem.flops / t4.tensor_flops["float16"]
        cells.append([
            str(length), f"{standard:.3f}", f"{by_bytes:.3f}", f"{moved / standard / 1e6:.0f}", f"{flash:.3f}",
            f"{by_flops:.3f}", f"{problem.flops / flash / 1e9:.2f}", f"{flash / causal:.2f}",
        ])  # fmt: skip
    headers = [
        "N", "standard:\nms", "floor by\nbytes, ms", "GB/s", "flash:\nms", "floor by\nFLOP, ms", "TFLOP/s",
        "flash /\ncausal",
    ]  # fmt: skip
    print(f"Printed times on a {t4.name} and floors: {t4.memory_bytes_per_s / 1e9:g} GB/s, "
          f"{t4.tensor_flops['float16'] / 1e12:g} TFLOP/s\n")  # fmt: skip
    print(table(headers, cells, [True] * len(headers)))


if __name__ == "__main__":
    main()
