"""What kernels have compiled in, as campaigns draw it: each build is a compilation of its own, so there are few."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.model.cases.case import Case
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import TileSizes


class Build(ABC):
    """One choice of compile-time parameters of an operation's kernels. Subclasses are frozen dataclasses."""

    tile: str | None
    """The sizes as a variant takes them, such as `Br=16,Bc=8`, where they are not its default ones."""

    @property
    @abstractmethod
    def plain_problem(self) -> BaseProblem:
        """A problem of this build that a variant is asked about: whether it takes it, and with which tiles."""

    @property
    def rather(self) -> Sequence[Build]:
        """Builds that show more: the first of them that a variant takes is in this one's place."""
        return ()

    @property
    def otherwise(self) -> Sequence[Build]:
        """Builds of which the first that a variant takes is in this one's place where it does not take this one."""
        return ()

    def with_features(self, takes: Sequence[str], place: int) -> Build:
        """The build with some of the features `takes` compiled in: which, depends on its place in the order of builds.

        Over the first places each feature is met together with others, alone, and not at all.
        """
        return self

    @property
    def less(self) -> Sequence[Build]:
        """Builds with less compiled in, to which a failing case may be simplified besides `Builds.plainer`."""
        return ()

    def of_problem(self, problem: Any) -> Build | None:
        """The build that kernels have for `problem`, with this one's tiles; None: none but those of a campaign.

        A failure of an earlier campaign with another seed may be of such a build.
        """
        return None

    @property
    def traits(self) -> tuple[str, ...]:
        """The features and classes of values that are compiled in, in words, such as `float16` or `sinks alone`."""
        return ()

    @property
    def is_usual(self) -> bool:
        """Whether rows are as long as most models have them: small tiles are of such a build, if there is one."""
        return False

    @property
    def is_wide(self) -> bool:
        """Whether a row takes more than one warp's lanes, so that several warps have parts of what one row needs.

        And not many more: what the sanitizer adds to unrolled code takes minutes to compile then.
        """
        return False

    @abstractmethod
    def sized(self, tile: TileSizes, text: str | None) -> Build:
        """The build with a variant's tile sizes; `text` spells them for the command line, None for the default ones."""

    @abstractmethod
    def tiles(self, problem: Any) -> tuple[int, ...]:
        """How many tiles the problem has, each way."""

    @property
    def name(self) -> str:
        """What is compiled in, in words."""
        return ", ".join(str(part) for part in (*self.plain_problem.build_key, self.tile) if part is not None)

    @property
    def key(self) -> tuple[Hashable, ...]:
        """What is compiled in."""
        return (self.plain_problem.build_key, self.tile)


@dataclass(frozen=True)
class Builds:
    """The builds of a campaign, the plainest first."""

    known: Sequence[Build]

    def of(self, case: Case) -> Any:
        """The build that a case runs: a known one, or a known one with other features."""
        wanted = (case.problem.build_key, case.tile)
        known = (each for build in self.known for each in (build, *build.less))
        others = (each for build in self.known if (each := build.of_problem(case.problem)) is not None)
        like_known = (each for each in others if self._places(each))
        return next(each for some in (known, like_known) for each in some if each.key == wanted)

    def rank(self, case: Case) -> int:
        """How far from the plainest a case's build is."""
        return self._place(self.of(case))

    def plainer(self, build: Build) -> Sequence[Any]:
        """Those before it."""
        return self.known[: self._place(build)]

    def _place(self, build: Build) -> int:
        exact = (place for place, known in enumerate(self.known) if build in (known, *known.less))
        return next(itertools.chain(exact, self._places(build)))

    def _places(self, build: Build) -> list[int]:
        """The places of known builds that differ from this one in features alone."""
        plain = build.with_features((), 0)
        return [place for place, known in enumerate(self.known) if known.with_features((), 0) == plain]
