"""What a command is asked: a frozen object that is read once from the command line, or from a call in Python."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from harness.execution.run_settings import DEFAULT_SETTINGS, RunSettings
from harness.model.discovery import Discovery
from harness.model.problem import BaseProblem
from harness.options.device import read_caches
from harness.options.effort import read_effort
from harness.options.keep import Publication
from harness.options.problem import ProblemOptions, read_problem
from harness.options.variants import Selection, discover_variants
from harness.options.watch import KeptResults

if TYPE_CHECKING:
    from harness.model.variant import Variant

T = TypeVar("T")
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
    report: Publication = field(default_factory=Publication)
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
            report=read_options(Publication, arguments),
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
    workers: int | str | None = None
    """How many worker processes, or the address of a Dask scheduler; None: no workers."""
    afresh: bool = False
    """Whether work that was cut off begins again."""

    @classmethod
    def further_fields(cls, arguments: argparse.Namespace, problem: BaseProblem | None) -> dict[str, Any]:
        """See `Request`."""
        given = {"caches": read_caches(arguments), "effort": read_effort(arguments)}
        settings = read_options(RunSettings, arguments, **given)
        return {"problem": read_problem(arguments, problem), "settings": settings}


def option(metavar: str | None, help: str, *, default: Any = None, **how: Any) -> Any:
    """A field of a request that is an option; `how` is for `ArgumentParser.add_argument`, as are `metavar` and `help`.

    `default` is the field's, where the option is left out.
    """
    return field(default=default, metadata={"option": {"metavar": metavar, "help": help, **how}})


def flag(help: str) -> Any:
    """A field of a request that is an option without a value."""
    return field(default=False, metadata={"option": {"action": "store_true", "help": help}})


def argument(metavar: str, help: str, **how: Any) -> Any:
    """A field of a request that is a positional argument."""
    default: Any = {"?": None, "*": ()}.get(how.get("nargs", ""), MISSING)
    return field(default=default, metadata={"argument": {"metavar": metavar, "help": help, **how}})


def add_fields_of(request: type[Request], parser: argparse._ActionsContainer, *names: str) -> None:
    """The options and arguments of these fields, in this order."""
    known = {each.name: each.metadata for each in fields(request)}
    for name in names:
        if "argument" in known[name]:
            parser.add_argument(name, **known[name]["argument"])
        else:
            parser.add_argument(f"--{name.replace('_', '-')}", **known[name]["option"])


def read_options(kind: type[T], arguments: argparse.Namespace, **given: Any) -> T:
    """A dataclass whose fields have the values of the options of their names. `given` fields are not looked up."""
    values = {each.name: getattr(arguments, each.name, None) for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in {**values, **given}.items() if value is not None})
