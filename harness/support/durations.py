"""Durations in words."""

from __future__ import annotations

_UNITS = (("days", 86400), ("hours", 3600), ("minutes", 60))


def duration_in_words(seconds: float) -> str:
    """Format a duration, such as `3 hours`, in the largest unit of which there are at least two."""
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.0f} second{'' if round(seconds) == 1 else 's'}"
