#!/usr/bin/env python3
"""Audit: bytes that published walk-throughs of attention say it moves, against what our kernels are counted to move.

N = 2048, one head of 64 elements, float16. The figures are those of "FlashAttention from Scratch: The IO-awareness
paper explained through a working Triton kernel" and of "Writing FlashAttention in Triton (Part 1): The Memory Wall and
the Online Softmax Trick". Counted on the emulated GPU at the sectors level: before any cache.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harness import Problem
from harness.emulator.executor import EmulatorExecutor
from harness.execution.traffic.traffic_account import TrafficAccount
from harness.model.discovery import discover
from harness.studies.traffic.measurement import measure_traffic
from harness.support.memory_units import MIB
from harness.text.tables import table
from variants.attention import fa2

PROBLEM = Problem(heads=1, q_len=2048, kv_len=2048, head_dim=64, dtype="float16")
PRINTED_MIB = {
    ("Q", "read"): 0.25, ("K", "read"): 0.25, ("V", "read"): 0.25, ("S", "written"): 8.0, ("S", "read"): 8.0,
    ("P", "written"): 8.0, ("P", "read"): 8.0,
}  # fmt: skip
"""What standard attention moves, tensor by tensor; the sum is printed as about 33 MB."""
ONCE_MIB = {("Q", "read"): 0.25, ("K", "read"): 0.25, ("V", "read"): 0.25, ("O", "written"): 0.25}
"""FlashAttention: Q, K and V read exactly once, O written exactly once."""


def counted(name: str) -> TrafficAccount:
    """Run the variant on the emulated GPU."""
    return measure_traffic(discover().registry.get(name), PROBLEM, EmulatorExecutor())


def compared(account: TrafficAccount, printed: dict[tuple[str, str], float]) -> str:
    """A row per tensor and direction: printed, counted, and what became of it."""
    found = {}
    for part in account.buffers:
        for direction, count in (("read", part.read), ("written", part.written)):
            if count.sectors:
                found[part.name, direction] = count.sector_bytes / MIB
    order = [*printed, *(key for key in found if key not in printed)]
    cells = []
    for key in order:
        said, ours = printed.get(key), found.get(key, 0.0)
        holds = "left out" if said is None else "yes" if said == ours else f"no, {ours / said:g} times"
        cells.append([f"{key[0]} {key[1]}", "-" if said is None else f"{said:.2f}", f"{ours:.2f}", holds])
    cells.append(["sum", f"{sum(printed.values()):.2f}", f"{sum(found.values()):.2f}", ""])
    return table(["tensor", "printed\nMiB", "counted\nMiB", "holds"], cells, [False, True, True, False])


def written_per_row(account: TrafficAccount) -> str:
    """Elements of two bytes that are written per query row."""
    written = account.level("sectors").write_bytes
    assert written is not None
    return f"{written / PROBLEM.itemsize_bytes / PROBLEM.q_len:g}"


def main() -> None:
    """Print the tables."""
    three_pass, flash = counted("three-pass-cupy"), counted("fa2-cupy")
    print("Standard attention (three-pass-cupy), N 2048, 1 head, head_dim 64, float16\n")
    print(compared(three_pass, PRINTED_MIB))
    print("\nFlashAttention (fa2-cupy), the same problem\n")
    print(compared(flash, ONCE_MIB))

    print("\nWritten per query row, in elements of 2 bytes; kernel launches\n")
    cells = [
        ["standard", "2 N + d = 4160", written_per_row(three_pass), "3", str(len(three_pass.launches))],
        ["FlashAttention", "d = 64", written_per_row(flash), "1", str(len(flash.launches))],
    ]
    headers = ["algorithm", "written:\nprinted", "written:\ncounted", "round trips:\nprinted", "launches:\ncounted"]
    print(table(headers, cells, [False, False, True, True, True]))

    print("\nK and V that fa2 reads under a causal mask, of what it reads without; printed: about half at long N\n")
    cells = []
    for length in (512, 1024, 2048, 4096, 8192):
        problems = [
            Problem(heads=1, q_len=length, kv_len=length, dtype="float16", mask="causal" if causal else "none")
            for causal in (True, False)
        ]
        masked, whole = (fa2.claim(p).read_bytes - p.compulsory_write_bytes for p in problems)  # without Q
        cells.append([str(length), f"{100 * masked / whole:.1f} %"])
    print(table(["N", "share"], cells, [True, True]))


if __name__ == "__main__":
    main()
