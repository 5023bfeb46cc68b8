"""Renders the list of registered variants."""

from __future__ import annotations

from collections.abc import Sequence

from harness.model.registry import Registry
from harness.model.variant import Variant
from harness.text.report import Report, Table


def render_listing(variants: Sequence[Variant], registry: Registry, format: str) -> str:
    """Render the registered variants in one of `FORMATS`, ending in a line break."""
    keys = ["name", "algorithm", "backend", "idea"]
    listing = [
        {key: getattr(v, key) for key in keys} | {"origin": registry.origin_of(v.name), "operation": v.operation}
        for v in variants
    ]
    return Report(
        paragraphs=lambda: [Table(keys, [[entry[key] for key in keys] for entry in listing], [False] * len(keys))],
        notes=lambda: [],
        records=lambda: (listing, [*keys, "origin", "operation"]),
        document=lambda: {"variants": listing},
    ).render(format)
