"""The list of commands. A new one is a folder beside this file, and a line here."""

from __future__ import annotations

from harness.options.command import Command
from harness.studies.bench.command import COMMAND as BENCH
from harness.studies.compare.command import COMMAND as COMPARE
from harness.studies.fuzz.command import COMMAND as FUZZ
from harness.studies.listing.command import COMMAND as LIST
from harness.studies.new.command import COMMAND as NEW
from harness.studies.run.command import COMMAND as RUN
from harness.studies.show.command import COMMAND as SHOW
from harness.studies.traffic.command import COMMAND as TRAFFIC
from harness.studies.tune.command import COMMAND as TUNE

COMMANDS: tuple[Command, ...] = (LIST, COMPARE, RUN, TRAFFIC, BENCH, TUNE, FUZZ, SHOW, NEW)
"""In the order of `--help`."""
