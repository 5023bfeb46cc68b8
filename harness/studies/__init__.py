"""A file per command: each joins what was asked to what does it. The only package that loads variants.

Executors, compilers and the oracle are imported by the functions that use them: `list` waits for none of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from harness.studies.bench.command import run_bench
from harness.studies.compare.command import run_compare
from harness.studies.fuzz.command import run_fuzz
from harness.studies.listing.command import run_list
from harness.studies.run.command import run_one
from harness.studies.show.command import run_show
from harness.studies.traffic.command import run_traffic
from harness.studies.tune.command import run_tune

COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": run_list,
    "compare": run_compare,
    "run": run_one,
    "traffic": run_traffic,
    "bench": run_bench,
    "tune": run_tune,
    "fuzz": run_fuzz,
    "show": run_show,
}
"""Every command by name. `harness/arguments.py` has their options."""
