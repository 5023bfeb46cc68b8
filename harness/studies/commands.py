"""The list of commands. A new command needs a folder next to this file, and a line here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from harness.options.command import Command

COMMANDS: Mapping[str, str] = {
    "list": "listing",
    "compare": "compare",
    "run": "run",
    "traffic": "traffic",
    "why": "why",
    "bench": "bench",
    "tune": "tune",
    "fuzz": "fuzz",
    "history": "history",
    "show": "show",
    "report": "report",
    "emulate": "emulate",
    "learn": "learn",
    "new": "new",
}
"""Folder by command name, in the order of `--help`. A command is imported on first use."""


def command_named(name: str) -> Command[Any]:
    """Import one of `COMMANDS`."""
    command: Command[Any] = importlib.import_module(f"harness.studies.{COMMANDS[name]}.command").COMMAND
    return command
