"""Builds of an operation that draws the cases of another one, whose kernels have the same compile-time parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.model.cases.build import Build
from harness.model.tile_sizes import TileSizes
from harness.support.override import override

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class WrappedBuild(Build):
    """What the kernels of the other operation have compiled in. Subclasses add the problem."""

    forward: Any
    """The other operation's own build."""
    tile: str | None = None

    @property
    @override
    def preferred(self) -> tuple[Self, ...]:
        return tuple(type(self)(each) for each in self.forward.preferred)

    @property
    @override
    def fallbacks(self) -> tuple[Self, ...]:
        return tuple(type(self)(each) for each in self.forward.fallbacks)

    @property
    @override
    def is_usual(self) -> bool:
        return bool(self.forward.is_usual)

    @property
    @override
    def is_wide(self) -> bool:
        return bool(self.forward.is_wide)

    @property
    @override
    def traits(self) -> tuple[str, ...]:
        traits: tuple[str, ...] = self.forward.traits
        return traits

    @property
    @override
    def assumed_tile(self) -> tuple[int, ...]:
        tile: tuple[int, ...] = self.forward.assumed_tile
        return tile

    @override
    def with_tile(self, tile: TileSizes, text: str | None) -> Self:
        return type(self)(self.forward.with_tile(tile, text), text)
