"""Tile sizes as a variant declares them and as the command line spells them."""

from __future__ import annotations

from collections.abc import Mapping

TileSizes = Mapping[str, int]
"""One choice of tile sizes, such as {"Br": 64, "Bc": 32}; the names are the variant's own."""


def tile_text(tile: TileSizes) -> str:
    """{"Br": 32, "Bc": 64} -> `Br=32,Bc=64`, as --tile takes it."""
    return ",".join(f"{name}={size}" for name, size in tile.items())
