"""Defines tile sizes and their text on the command line."""

from __future__ import annotations

from collections.abc import Mapping

TileSizes = Mapping[str, int]
"""Tile sizes such as {"Br": 64, "Bc": 32}. Each variant chooses the names."""


def tile_text(tile: TileSizes) -> str:
    """Format tile sizes for --tile: {"Br": 32, "Bc": 64} -> `Br=32,Bc=64`."""
    return ",".join(f"{name}={size}" for name, size in tile.items())
