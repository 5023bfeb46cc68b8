#!/usr/bin/env python3
"""Audit: the bytes in figure 2 of the FlashAttention paper, against the paper's own algorithms, line by line.

Dao, Fu, Ermon, Rudra and Re 2022, arXiv 2205.14135, figure 2 (left): GPT-2 medium on an A100, forward and backward,
sequence length 1024, head dimension 64, 16 heads, batch 64: standard attention 40.3 GB, FlashAttention 4.4 GB.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harness import Problem
from harness.text.tables import table
from variants._tiles import Tile
from variants.attention import fa1

N, D, HEADS, BATCH, ITEM_BYTES, FLOAT32_BYTES = 1024, 64, 16, 64, 2, 4
GIGA = 1e9
PRINTED_GB = {"standard": 40.3, "flash": 4.4}
A100_SHARED_BYTES = 192 * 1024
"""Shared memory of one multiprocessor, as the paper states it (section 2.1)."""


@dataclass(frozen=True)
class Line:
    """What one line of an algorithm moves, per head: how often each kind of matrix passes."""

    algorithm: str
    what: str
    square: int = 0
    """N x N matrices: S, P and their gradients."""
    tall: int = 0
    """N x d matrices: Q, K, V, O and their gradients."""
    statistics: int = 0
    """Vectors of N in float32: l, m."""
    visits: bool = False
    """Happens once per block of keys (T_c times) and not once."""


STANDARD = (
    Line("algorithm 0", "read Q, K; write S", square=1, tall=2),
    Line("algorithm 0", "read S; write P", square=2),
    Line("algorithm 0", "read P, V; write O", square=1, tall=2),
    Line("algorithm 3", "read P, dO; write dV", square=1, tall=2),
    Line("algorithm 3", "read dO, V; write dP", square=1, tall=2),
    Line("algorithm 3", "read P, dP; write dS", square=3),
    Line("algorithm 3", "read dS, K; write dQ", square=1, tall=2),
    Line("algorithm 3", "read dS, Q; write dK", square=1, tall=2),
)
FLASH = (
    Line("algorithm 1", "write O, l, m = 0, 0, -inf", tall=1, statistics=2),
    Line("algorithm 1", "read K_j, V_j", tall=2),
    Line("algorithm 1", "read Q_i, O_i, l_i, m_i; write O_i, l_i, m_i", tall=3, statistics=4, visits=True),
    Line("algorithm 4", "write dQ, dK, dV = 0", tall=3),
    Line("algorithm 4", "read K_j, V_j; write dK_j, dV_j", tall=4),
    Line("algorithm 4", "read Q_i, O_i, dO_i, dQ_i, l_i, m_i; write dQ_i", tall=5, statistics=2, visits=True),
)


def gigabytes(lines: tuple[Line, ...], key_blocks: int = 1, item_bytes: int = ITEM_BYTES) -> float:
    """All heads of the batch, in 10^9 bytes."""
    total = 0
    for line in lines:
        once = line.square * N * N * item_bytes + line.tall * N * D * item_bytes + line.statistics * N * FLOAT32_BYTES
        total += once * (key_blocks if line.visits else 1)
    return total * HEADS * BATCH / GIGA


def paper_block(on_chip_bytes: int) -> int:
    """Line 1 of algorithm 1: B_c = M / 4 d, for M elements of two bytes."""
    return on_chip_bytes // ITEM_BYTES // (4 * D)


def against(printed: float, ours: float) -> str:
    """How far ours lies from what is printed."""
    return f"{100 * (ours - printed) / printed:+.1f} %"


def forward_is_what_our_kernel_claims(Bc: int) -> bool:
    """Whether algorithm 1 above, all in float32, has the bytes that fa1 claims (and is counted to move)."""
    problem = Problem(batch=BATCH, heads=HEADS, q_len=N, kv_len=N, head_dim=D)
    forward = tuple(line for line in FLASH if line.algorithm == "algorithm 1")
    return gigabytes(forward, -(-N // Bc), FLOAT32_BYTES) == fa1.claim(problem, Tile(Br=64, Bc=Bc)).total_bytes / GIGA


def main() -> None:
    """Print the tables."""
    print("FlashAttention, algorithms 1 and 4, against B_c; printed: 4.4 GB\n")
    cells = []
    for Bc in (128, 256, paper_block(A100_SHARED_BYTES), 512):
        visits = -(-N // Bc)
        every = gigabytes(FLASH, visits)
        no_start = gigabytes(tuple(line for line in FLASH if "= 0" not in line.what), visits)
        held = "yes" if forward_is_what_our_kernel_claims(Bc) else "no"
        compared = [f"{every:.2f}", against(PRINTED_GB["flash"], every)]
        compared += [f"{no_start:.2f}", against(PRINTED_GB["flash"], no_start)]
        cells.append([str(Bc), str(visits), *compared, held])
    headers = [
        "B_c",
        "T_c",
        "all lines\nGB",
        "to\nprinted",
        "without\nzeroing, GB",
        "to\nprinted",
        "forward is\nfa1's claim",
    ]
    print(table(headers, cells, [True] * 6 + [False]))

    print("\nStandard attention, algorithms 0 and 3, per head; printed: 40.3 GB\n")
    cells = [[line.algorithm, line.what, str(line.square), str(line.tall)] for line in STANDARD]
    square, tall = sum(line.square for line in STANDARD), sum(line.tall for line in STANDARD)
    cells.append(["", "sum", str(square), str(tall)])
    print(table(["", "line", "N x N", "N x d"], cells, [False, False, True, True]))
    ours = gigabytes(STANDARD)
    printed_per_head = PRINTED_GB["standard"] * GIGA / (HEADS * BATCH)
    passes = (printed_per_head - tall * N * D * ITEM_BYTES) / (N * N * ITEM_BYTES)
    print(f"\nThat is {ours:.1f} GB, {against(PRINTED_GB['standard'], ours)} to what is printed. "
          f"40.3 GB would be {passes:.1f} passes over N x N matrices of 16 bits instead of {square}.")  # fmt: skip


if __name__ == "__main__":
    main()
