"""A file per command: each joins what was asked to what does it. The only package that loads variants.

Executors, compilers and the oracle are imported by the functions that use them: `list` waits for none of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from harness.commands.bench import run_bench
from harness.commands.compare import run_compare
from harness.commands.fuzz import run_fuzz
from harness.commands.listing import run_list
from harness.commands.run import run_one
from harness.commands.show import run_show
from harness.commands.traffic import run_traffic
from harness.commands.tune import run_tune

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
