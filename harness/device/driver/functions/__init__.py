"""The driver's functions by subject. Each module registers its own in `function_table`."""

from __future__ import annotations

import importlib

MODULES = (
    "initialization", "devices", "contexts", "memory", "host_memory", "copies", "strided_copies", "pointers", "streams",
    "events", "graphs", "memory_pools", "modules", "linking", "function_attributes", "launches",
)  # fmt: skip


def load() -> None:
    """Register all functions."""
    for name in MODULES:
        importlib.import_module(f"{__name__}.{name}")
