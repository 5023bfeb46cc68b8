"""The driver's functions by subject. Each module registers its own in `function_table`."""

from __future__ import annotations

import importlib

MODULES = (
    "initialization", "devices", "contexts", "memory", "host_memory", "arrays", "copies", "strided_copies", "textures",
    "pointers", "streams", "events", "graphs.recording", "graphs.user_objects", "memory_pools", "modules", "linking",
    "function_attributes", "launches", "graphs.dependencies", "graphs.nodes",
)  # fmt: skip


def load() -> None:
    """Register all functions."""
    for name in MODULES:
        importlib.import_module(f"{__name__}.{name}")
