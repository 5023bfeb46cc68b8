#!/usr/bin/env python3
"""Mutated PTX on the emulator: each text is refused with its line, or it runs; anything else is a bug, and shown.

    .venv/bin/python scripts/fuzz_ptx.py --texts 5000                              # read, and every tenth one run
    .venv/bin/python scripts/fuzz_ptx.py --first 137 --texts 1 --run-every 1 --show

Exit status 1 where there was a bug.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "emulator")]

from examined_ptx import examine  # noqa: E402
from test_mutated_ptx import originals  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the first text (default: 0)")
    parser.add_argument("--texts", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--run-every", type=int, default=10, metavar="N", help="run every Nth that is accepted")
    parser.add_argument("--show", action="store_true", help="print the texts with bugs")
    arguments = parser.parse_args()
    outcomes: Counter[str] = Counter()
    starts = originals()
    for seed in range(arguments.first, arguments.first + arguments.texts):
        found = examine(seed, starts, launched=seed % arguments.run_every == 0)
        outcomes["bug" if found.is_bug else found.outcome] += 1
        if found.is_bug:
            print(f"seed {seed}: {found.outcome}", flush=True)
            if arguments.show:
                print(found.text)
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))
    return 1 if outcomes["bug"] else 0


if __name__ == "__main__":
    sys.exit(main())
