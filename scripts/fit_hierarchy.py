#!/usr/bin/env python3
"""Hold the modelled L1, L2 and DRAM against a record of the hardware's counters. Run from the repository's root:

    python scripts/fit_hierarchy.py tests/hardware/traffic_h200.json --problems 0-10 --variants '*cupy'

Prints every launch, and then the misses of each half of the launches, away from the capacity of L2 and near it. The
model's constants come from other kernels (scripts/recording/cache_probes.py); whoever changes them for the sake of such
a record looks at half 0 alone, and half 1 judges.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.recording.cache_comparison import Comparison, compare


def numbers(text: str) -> list[int]:
    """`0-3,7` -> [0, 1, 2, 3, 7]."""
    ranges = (part.partition("-") for part in text.split(","))
    return [n for first, _, last in ranges for n in range(int(first), int(last or first) + 1)]


def line(c: Comparison) -> str:
    near = "near" if c.is_near else "    "
    return (
        f"{c.problem:3} {c.variant:17}{c.kernel:19}{near} | L2 read {c.l2_read:>10,} {c.measured_l2_read:>10,} "
        f"{c.miss('l2_read'):>+7.2%} (coalesced {c.measured_coalesced:>10,}) | written {c.l2_write:>10,} "
        f"{c.miss('l2_write'):>+7.2%} | DRAM read {c.dram_read:>10,} {c.measured_dram_read:>10,} "
        f"{c.miss('dram_read'):>+7.2%} | written {c.dram_write:>10,} {c.measured_dram_write:>10,}"
    )


def summary(found: Sequence[Comparison]) -> list[str]:
    groups: list[tuple[str, str, Callable[[Comparison], bool]]] = [
        ("L2 read, L1 keeps nothing", "l2_read", lambda c: c.load_sectors > 0 and not c.l1_keeps),
        ("L2 read, L1 keeps some", "l2_read", lambda c: c.l1_keeps),
        ("L2 written", "l2_write", lambda c: c.measured_l2_write > 0),
        ("DRAM read, away from capacity", "dram_read", lambda c: not c.is_near),
        ("DRAM read, near capacity", "dram_read", lambda c: c.is_near),
    ]
    lines = [f"{'':31}{'half':>5}{'launches':>9}{'median':>9}{'worst':>9}"]
    for name, level, belongs in groups:
        for half in (0, 1):
            chosen = [c for c in found if c.half == half and belongs(c)]
            misses = [abs(c.miss(level)) for c in chosen]
            if misses:
                worst = max(chosen, key=lambda c: abs(c.miss(level)))
                where = f"  problem {worst.problem}, {worst.variant}, {worst.kernel}"
                lines.append(
                    f"{name:31}{half:>5}{len(misses):>9}{statistics.median(misses):>9.2%}{max(misses):>9.2%}{where}"
                )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="what scripts/record_traffic.py wrote")
    parser.add_argument("--problems", type=numbers, metavar="0-3,7", help="of the record (default: all)")
    parser.add_argument("--variants", default="*", metavar="GLOB", help="default: all")
    arguments = parser.parse_args()
    record = json.loads(arguments.record.read_text())
    cases = sorted({(row["problem"], row["variant"]) for row in record["launches"]})
    found = []
    for problem, variant in cases:
        if fnmatch.fnmatch(variant, arguments.variants) and problem in (arguments.problems or [problem]):
            for comparison in compare(record, problem, variant):
                found.append(comparison)
                print(line(comparison), flush=True)
    print("\n" + "\n".join(summary(found)))


if __name__ == "__main__":
    main()
