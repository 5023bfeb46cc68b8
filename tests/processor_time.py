"""Processor time, which other processes on the machine do not lengthen as they do wall time."""

from __future__ import annotations

import resource


def seconds_of_ended_children() -> float:
    """Processor time in seconds, in user and system mode, of this process's children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
