"""Available memory of this process: the machine's, or what its control group leaves of it."""

from __future__ import annotations

import contextlib
from pathlib import Path

_GROUPS = (
    # Limit and usage in cgroup v2, then v1.
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def available_bytes() -> int:
    """Bytes that can be allocated without swapping or exceeding a limit of the control group (a container's)."""
    found = [_available_on_machine()]
    for limit, used in _GROUPS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or `max`: no limit
            group = Path("/sys/fs/cgroup")
            found.append(int((group / limit).read_text()) - int((group / used).read_text()))
    return max(0, min(found))


def _available_on_machine() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 2**63
