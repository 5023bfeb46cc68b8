"""What a command is asked: a frozen object that is read once from the command line, or from a call in Python."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from harness.execution.run_settings import DEFAULT_SETTINGS, RunSettings
from harness.model.discovery import Discovery
from harness.model.problem import BaseProblem
from harness.options.command import flag, read_options
from harness.options.device import CacheOptions
from harness.options.effort import read_effort
from harness.options.output import ReportOptions
from harness.options.problem import ProblemOptions, read_problem
from harness.options.variants import Selection, discover_variants
from harness.options.watch import KeptResults
from harness.support.override import override

if TYPE_CHECKING:
    from harness.model.variant import Variant

R = TypeVar("R", bound="Request")


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options that all commands share. A command's own request adds a field for each of its own options.

    A field has the value of the option of its name. Where the command has no such option, or it is left out, the field
    keeps its default.
    """

    operation: str | None = None
    """The operation; None: all of them."""
    selection: Selection = field(default_factory=Selection)
    report: ReportOptions = field(default_factory=ReportOptions)
    kept: KeptResults = field(default_factory=KeptResults)
    """Results of earlier runs of a command that is watched."""

    @classmethod
    def read(
        cls: type[R],
        arguments: argparse.Namespace,
        *,
        problem: BaseProblem | None = None,
        own_variants: Sequence[Variant] = (),
        kept: KeptResults | None = None,
    ) -> R:
        """The request that these options make. A caller from Python may give a problem and variants as objects.

        Raises `UsageError` for values that an option does not take.
        """
        return read_options(
            cls,
            arguments,
            selection=read_options(Selection, arguments, own_variants=tuple(own_variants)),
            report=read_options(ReportOptions, arguments),
            kept=KeptResults() if kept is None else kept,
            **cls.further_fields(arguments, problem),
        )

    @classmethod
    def further_fields(cls, arguments: argparse.Namespace, problem: BaseProblem | None) -> dict[str, Any]:
        """Fields of a subclass that are not named as an option is."""
        return {}

    def discover(self) -> Discovery:
        """The variants and plugins, isolated from this process; what could not be loaded is a warning."""
        found = discover_variants(self.selection)
        self.kept.loaded_files = set(found.files)
        return found


@dataclass(frozen=True, kw_only=True)
class StudyRequest(Request):
    """The options that commands share which run variants."""

    problem: ProblemOptions = field(default_factory=ProblemOptions)
    settings: RunSettings = DEFAULT_SETTINGS
    cache_options: CacheOptions = field(default_factory=CacheOptions)
    workers: int | str | None = None
    """How many worker processes, or the address of a Dask scheduler; None: no workers."""
    afresh: bool = flag("begin at the beginning, where the same command was cut off and would go on")

    @classmethod
    @override
    def further_fields(cls, arguments: argparse.Namespace, problem: BaseProblem | None) -> dict[str, Any]:
        return {
            "problem": read_problem(arguments, problem),
            "settings": read_options(RunSettings, arguments, caches=None, effort=read_effort(arguments)),
            "cache_options": read_options(CacheOptions, arguments),
        }
