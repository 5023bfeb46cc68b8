"""Defines the request of a command: a frozen dataclass, read once from the command line or from a call in Python."""

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
    """Options that all commands share. Subclasses add a field for each option of their command.

    Each field has the value of the option with its name, or its default if the command lacks the option or it is
    omitted.
    """

    operation: str | None = None
    """Name of the operation; None for all operations."""
    selection: Selection = field(default_factory=Selection)
    report: ReportOptions = field(default_factory=ReportOptions)
    kept: KeptResults = field(default_factory=KeptResults)
    """Results of earlier runs, if the command runs with --watch."""

    @classmethod
    def read(
        cls: type[R],
        arguments: argparse.Namespace,
        *,
        problem: BaseProblem | None = None,
        own_variants: Sequence[Variant] = (),
        kept: KeptResults | None = None,
    ) -> R:
        """Create a request from parsed options. A caller from Python may pass a problem and variants as objects.

        Raises `UsageError` for invalid values.
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
        """Return the fields of a subclass that do not have the name of an option."""
        return {}

    def discover(self) -> Discovery:
        """Discover variants and plugins, in other processes. Those that cannot be loaded are reported as warnings."""
        found = discover_variants(self.selection)
        self.kept.loaded_files = set(found.files)
        return found


@dataclass(frozen=True, kw_only=True)
class StudyRequest(Request):
    """Options that are shared by commands that run variants."""

    problem: ProblemOptions = field(default_factory=ProblemOptions)
    settings: RunSettings = DEFAULT_SETTINGS
    cache_options: CacheOptions = field(default_factory=CacheOptions)
    workers: int | str | None = None
    """Number of worker processes, or the address of a Dask scheduler; None to run without workers."""
    afresh: bool = flag("start over instead of continuing an interrupted command")

    @classmethod
    @override
    def further_fields(cls, arguments: argparse.Namespace, problem: BaseProblem | None) -> dict[str, Any]:
        return {
            "problem": read_problem(arguments, problem),
            "settings": read_options(RunSettings, arguments, caches=None, effort=read_effort(arguments)),
            "cache_options": read_options(CacheOptions, arguments),
        }
