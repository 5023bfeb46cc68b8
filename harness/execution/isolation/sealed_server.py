"""Importing this module drops the privileges of the process. The server imports it first, and nobody else does.

All that the server forks inherits it: planners, and whatever a planner may ask the server to fork. The judge is no
child of the server, so it keeps its privileges.
"""

from __future__ import annotations

from harness.support.processes.privileges import drop_privileges, protect_memory

drop_privileges()
protect_memory()
