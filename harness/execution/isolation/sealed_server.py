"""Drops the privileges of the process that imports it, then imports what its children need. Only for the fork server.

Planners and everything that they make the server fork inherit the restriction. The judge is not a child of the server,
so it keeps its privileges.
"""

from __future__ import annotations

import importlib
import os
import sys

from harness.execution.isolation.server import PRELOAD_VARIABLE
from harness.support.processes.privileges import drop_privileges, protect_memory

drop_privileges()
protect_memory()
for name in os.environ.get(PRELOAD_VARIABLE, "").split():
    try:
        importlib.import_module(name)
    except Exception as error:
        # A compiler's package that is not installed is reported by the code that needs it.
        if not isinstance(error, ModuleNotFoundError) or error.name != name.partition(".")[0]:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"harness: the fork server cannot import {name}, so each process has to: {what}", file=sys.stderr)
