"""Defines builds: compile-time parameters of kernels.

Each build is compiled separately, so a campaign draws few of them.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.model.cases.case import Case
from harness.model.operation import operation_of
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import TileSizes


class Build(ABC):
    """A choice of compile-time parameters of an operation's kernels. Subclasses are frozen dataclasses."""

    tile: str | None
    """Tile sizes as a variant takes them, such as `Br=16,Bc=8`; None for its default ones."""

    @property
    @abstractmethod
    def plain_problem(self) -> BaseProblem:
        """A problem of this build, used to query whether a variant supports it, and with which tiles."""

    @property
    def preferred(self) -> Sequence[Build]:
        """Builds that reveal more. The first one that a variant supports replaces this one."""
        return ()

    @property
    def fallbacks(self) -> Sequence[Build]:
        """Alternatives if a variant does not support this build. The first one that it supports replaces this one."""
        return ()

    def with_features(self, takes: Sequence[str], place: int) -> Build:
        """Return the build with some of the features `takes`, selected by its place in the order of builds.

        Over the first `places_of_features`, each feature occurs together with others, alone, and not at all.
        """
        return self

    def places_of_features(self, takes: Sequence[str]) -> int:
        """Return the number of places over which `with_features` varies the features `takes`."""
        return 1

    @property
    def with_fewer_features(self) -> Sequence[Build]:
        """Builds with fewer features, to which a failing case may be simplified besides `Builds.simplified`."""
        return ()

    def of_problem(self, problem: Any) -> Build | None:
        """Return the build that kernels have for `problem`, with this build's tiles, or None.

        None means that the operation has only the builds of a campaign. A failure from an earlier campaign with another
        seed may have a build that is not among those.
        """
        return None

    @property
    def traits(self) -> tuple[str, ...]:
        """Features and classes of values that are compiled in, such as `float16` or `sinks alone`."""
        return ()

    @property
    def is_usual(self) -> bool:
        """Whether rows are as long as in most models. Such a build is preferred for small tiles."""
        return False

    @property
    def is_wide(self) -> bool:
        """Whether a row exceeds one warp's lanes, so that several warps share the work on a row, but not by much.

        With many more, code that the sanitizer instruments and that is unrolled takes minutes to compile.
        """
        return False

    @property
    def assumed_tile(self) -> tuple[int, ...]:
        """Size of a tile in each direction if the variant declares none, so that one is assumed; empty otherwise."""
        return ()

    @abstractmethod
    def with_tile(self, tile: TileSizes, text: str | None) -> Build:
        """Return the build with a variant's tile sizes. `text` is their command-line form, None for the defaults."""

    @abstractmethod
    def tiles(self, problem: Any) -> tuple[int, ...]:
        """Return the number of tiles of the problem in each direction."""

    @property
    def name(self) -> str:
        """Description of the compile-time parameters."""
        return ", ".join(str(part) for part in (*self.plain_problem.build_key, self.tile) if part is not None)

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Key that is equal for builds with the same compile-time parameters."""
        return (self.plain_problem.build_key, self.tile)


@dataclass(frozen=True)
class Builds:
    """The builds of a campaign, the plainest first."""

    known: Sequence[Build]

    def of(self, case: Case) -> Any:
        """Return the build of a case: a known one, or a known one with other features. The case has to have one."""
        found = self.find(case)
        assert found is not None, case
        return found

    def find(self, case: Case) -> Build | None:
        """As `of`; None for a case whose build is none of these, such as a replayed one with another head_dim."""
        wanted = (case.problem.build_key, case.tile)
        known = (each for build in self.known for each in (build, *build.with_fewer_features))
        others = (each for build in self.known if (each := build.of_problem(case.problem)) is not None)
        like_known = (each for each in others if self._places(each))
        return next((each for some in (known, like_known) for each in some if each.key == wanted), None)

    def input_size(self, case: Case) -> tuple[int, ...]:
        """Return fields of `Operation.size`: the number of edits, whether a property is checked, build and regime."""
        regimes = list(operation_of(case.problem).regimes)
        return len(case.edits), case.check is not None, self.rank(case), regimes.index(case.regime)

    def rank(self, case: Case) -> int:
        """Return the position of a case's build; 0 is the plainest."""
        return self._place(self.of(case))

    def simplified(self, build: Build) -> Sequence[Any]:
        """Return the builds before this one."""
        return self.known[: self._place(build)]

    def _place(self, build: Build) -> int:
        exact = (place for place, known in enumerate(self.known) if build in (known, *known.with_fewer_features))
        return next(itertools.chain(exact, self._places(build)))

    def _places(self, build: Build) -> list[int]:
        """Return the positions of known builds that differ from this one only in features."""
        plain = build.with_features((), 0)
        return [place for place, known in enumerate(self.known) if known.with_features((), 0) == plain]
