"""Names the source line that moves most bytes."""

from __future__ import annotations

from textwrap import fill

from harness.execution.traffic.traffic_account import TrafficAccount
from harness.support.source_text import short_name
from harness.text.report import NOTE_WIDTH
from harness.text.tables import UNKNOWN

MOST_TIED = 4
"""Maximum number of lines that are named as costliest."""


def share_of(part: int, whole: int) -> str:
    """A part in percent; `UNKNOWN` if the whole is 0."""
    return f"{100 * part / whole:.1f} %" if whole else UNKNOWN


def costliest_line(account: TrafficAccount) -> list[str]:
    """The source lines that move most bytes, over all their buffers and kinds of access; nothing if none is known."""
    by_line: dict[tuple[str, int], dict[str, int]] = {}
    for row in account.lines:
        if row.line and row.sector_bytes:
            by_buffer = by_line.setdefault((row.file, row.line), {})
            by_buffer[row.buffer] = by_buffer.get(row.buffer, 0) + row.sector_bytes
    if not by_line:
        return []
    most, whole = max(sum(by_buffer.values()) for by_buffer in by_line.values()), account.moved_bytes
    places, buffers = [], []
    for (file, line), by_buffer in by_line.items():
        if sum(by_buffer.values()) == most:
            largest_first = sorted(by_buffer.items(), key=lambda each: -each[1])
            places.append(f"{short_name(file).rpartition('/')[2]}:{line}")
            buffers.append(", ".join(f"{name} {share_of(size, whole)}" for name, size in largest_first))
    share = f"{share_of(most, whole)} of the bytes, counted before any cache"
    if len(places) == 1:
        return [f"costliest line: {places[0]} ({buffers[0]}) moves {share}"]
    each = ", ".join(f"{place} ({moved})" for place, moved in zip(places[:MOST_TIED], buffers))
    more = f" and {len(places) - MOST_TIED} more" if len(places) > MOST_TIED else ""
    return [fill(f"costliest lines: {each}{more}; each moves {share}", NOTE_WIDTH)]
