"""Tables and values of a traffic report about a problem that several devices compute together: links, and memory."""

from __future__ import annotations

from typing import Any

from harness.execution.traffic.traffic_account import TrafficAccount
from harness.text.report import Table
from harness.text.tables import UNKNOWN, mib, smallest_of


def device_tables(account: TrafficAccount) -> list[Table]:
    """What each link moves, and what each device holds; empty if one device computes alone."""
    links = link_objects(account)
    smallest = smallest_of(link["total_bytes"] for link in links)
    rows = [
        [link["name"], f"{link['total_bytes']:,}", mib(link["total_bytes"], smallest), _bytes(link["claimed_bytes"])]
        for link in links
    ]
    tables = [Table(["link", "bytes", "sent\nMiB", "claimed\nbytes"], rows, [False, *[True] * 3])] if rows else []
    held = memory_objects(account)
    smallest = smallest_of(size for each in held for size in (each["total_bytes"], each["most_bytes"] or 0))
    rows = [
        [each["name"], mib(each["total_bytes"], smallest), f"{each['total_bytes']:,}", _bytes(each["most_bytes"])]
        for each in held
    ]
    headers = ["device", "held\nMiB", "held\nbytes", "allowed\nbytes"]
    return tables + ([Table(headers, rows, [False, *[True] * 3])] if rows else [])


def _bytes(size: int | None) -> str:
    return UNKNOWN if size is None else f"{size:,}"


def link_objects(account: TrafficAccount) -> list[dict[str, Any]]:
    """Bytes counted and claimed of each link, such as `0 to 1`."""
    counted = {(link.source, link.destination): link.size_bytes for link in account.links}
    claimed = {(link.source, link.destination): link.size_bytes for link in account.claimed_links or ()}
    unknown = None if account.claimed_links is None else 0
    return [
        {
            "name": f"{source} to {destination}",
            "source": source,
            "destination": destination,
            "total_bytes": counted.get((source, destination), 0),
            "claimed_bytes": claimed.get((source, destination), unknown),
        }
        for source, destination in sorted({*counted, *claimed})
    ]


def memory_objects(account: TrafficAccount) -> list[dict[str, Any]]:
    """Bytes that each device holds, and the most that it may."""
    return [
        {"name": str(device), "total_bytes": held, "most_bytes": account.problem.most_device_bytes(device)}
        for device, held in enumerate(account.device_bytes)
    ]
