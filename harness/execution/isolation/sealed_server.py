"""Drops the privileges of the process that imports it. Only the fork server may import this module, before any other.

Planners and everything that they make the server fork inherit the restriction. The judge is not a child of the server,
so it keeps its privileges.
"""

from __future__ import annotations

from harness.support.processes.privileges import drop_privileges, protect_memory

drop_privileges()
protect_memory()
