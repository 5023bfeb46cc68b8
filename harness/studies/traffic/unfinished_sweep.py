"""The stored points of an interrupted sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.options.resume import UnfinishedWork
from harness.options.sweep import Sweep
from harness.studies.traffic.sweep_point import SweepPoint
from harness.studies.traffic.sweep_run import Place


class UnfinishedSweep:
    """The finished points of a sweep."""

    def __init__(
        self, work: UnfinishedWork, variants: Sequence[Variant], sweep: Sweep, problems: Sequence[BaseProblem]
    ) -> None:
        """`problems` has one problem per value."""
        self._work = work
        self.known: dict[Place, SweepPoint] = {}
        """Points from before the interruption."""
        for value, problem in zip(sweep.values, problems):
            for variant in variants:
                point = work.known(variant.name, value)
                if isinstance(point, SweepPoint):
                    self.known[variant.name, value] = dataclasses.replace(point, problem=problem)

    def done(self, place: Place, point: SweepPoint) -> None:
        """Store a point unless it failed, since a failure may be this machine's fault and is repeated."""
        if not point.failed:
            self._work.finish(point, *place)
