"""Options that select variants: names and patterns, plugins, tile sizes."""

from __future__ import annotations

import argparse
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.compilers.cupy.cache_directory import replace_unusable_directory
from harness.execution.isolation.variants import discover_isolated
from harness.model.discovery import Discovery
from harness.model.problem import BaseProblem
from harness.model.variant import CALLER_ORIGIN
from harness.options.command import add_fields_of, option
from harness.options.standard_streams import complain
from harness.support.errors import PluginError, UsageError

if TYPE_CHECKING:
    from harness.model.variant import Variant
    from harness.options.sweep import Sweep


@dataclass(frozen=True)
class Selection:
    """Variants that a command runs."""

    variants: str | None = option("GLOB[,GLOB]", "names, or shell patterns such as 'fa*' (default: all)")
    plugin: Sequence[Path] = option(
        "PATH", "a file, or a folder with an __init__.py, whose function register(registry) adds variants; may be "
        "repeated",
        action="append", type=Path, default=(),
    )  # fmt: skip
    tile: str | None = option(
        "NAME=N[,NAME=N]", "tile sizes, such as Br=32,Bc=16, for variants that declare them (default: each variant's "
        "own)",
    )  # fmt: skip
    own_variants: tuple[Variant, ...] = ()
    """Variant objects of a caller from Python, which run in this process."""

    def tiled(self, variants: list[Variant], problem: BaseProblem) -> tuple[str | None, list[Variant]]:
        """Return the normalized tile sizes, and the variants that have such a tile.

        Raises `UsageError` if none has it.
        """
        if self.tile is None:
            return None, variants
        from harness.execution.planning.tiles import choose_tile, parse_tile
        from harness.model.tile_sizes import tile_text

        wanted = parse_tile(self.tile)
        return tile_text(wanted), choose_tile(variants, problem, wanted)

    def tiled_sweep(self, sweep: Sweep, variants: Sequence[Variant], problems: Sequence[BaseProblem]) -> Sweep:
        """Return the sweep with the requested tile sizes.

        Raises `UsageError` if no variant has such a tile at any point.
        """
        from harness.execution.planning.tiles import parse_tile, require_tile

        if self.tile is not None:
            sweep = replace(sweep, tile=parse_tile(self.tile))
            if sweep.of_tile and sweep.field in sweep.tile:
                raise UsageError(f"--sweep {sweep.field} and --tile set the same tile size; leave out one")
        if sweep.tile or sweep.of_tile:
            require_tile(variants, [(p, sweep.tile_at(value)) for p, value in zip(problems, sweep.values)])
        return sweep


def add_selection(parser: argparse._ActionsContainer) -> None:
    """Add --variants."""
    add_fields_of(Selection, parser, "variants")


def add_tile(parser: argparse._ActionsContainer) -> None:
    """Add --tile."""
    add_fields_of(Selection, parser, "tile")


def add_plugins(parser: argparse.ArgumentParser) -> None:
    """Add --plugin."""
    add_fields_of(Selection, parser, "plugin")


def discover_variants(selection: Selection) -> Discovery:
    """Discover all variants, including plugins', in other processes. Warns about those that cannot be loaded."""
    for path in selection.plugin:
        _require_name(path)
    unusable = replace_unusable_directory()
    if unusable is not None:
        complain(f"warning: {unusable}")
    found = discover_isolated(selection.plugin)
    for broken in found.broken:
        complain(f"warning: {broken.reason}")
    found.registry.origin = CALLER_ORIGIN
    for variant in selection.own_variants:
        found.registry.add(variant)
    return found


def require_some(variants: Sequence[object]) -> None:
    """Raise `UsageError` if there are no variants, including those that could not be loaded."""
    if not variants:
        raise UsageError("there are no variants; put one in variants/ or name a file with --plugin")


def _require_name(path: Path) -> None:
    """Raise `PluginError` if the path is invalid, or is not a file or folder.

    Reading a pipe, for example, may never end.
    """
    try:
        if not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):
            raise PluginError(f"plugin {path}: it is not a regular file; a plugin is a file of Python")
    except (FileNotFoundError, NotADirectoryError):
        pass  # reported when the plugin is loaded
    except (OSError, ValueError) as error:
        raise PluginError(f"plugin {path}: {getattr(error, 'strerror', None) or error}") from error
