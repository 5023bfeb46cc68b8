"""A pytest plugin: `pytest --attention mypackage.kernels` tests the variants that a module or a file registers.

pytest loads it in every run in an environment with this package, so it imports nothing of the harness until it is used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.model.discovery import Origin
    from harness.studies.fuzz.conformance import Demand, Subject


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --attention, --attention-examples, --attention-seed, --attention-summary."""
    group = parser.getgroup("attention", "attention kernels (attention-sandbox)")
    group.addoption(
        "--attention",
        action="append",
        default=[],
        metavar="MODULE|FILE.py",
        help="test the variants that its register(registry) adds; may be repeated",
    )
    group.addoption(
        "--attention-examples",
        type=int,
        metavar="N",
        help="examples that check the result of each variant; other checks use a share of that number (default: 60)",
    )
    group.addoption(
        "--attention-seed", type=int, default=0, metavar="S", help="same seed, same cases (default: %(default)s)"
    )
    group.addoption(
        "--attention-summary",
        type=Path,
        metavar="FILE.md",
        help="write a summary in Markdown: the outcome of each variant, and the table that `compare` prints",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Leave out this project's own tests, and register the summary writer if a summary is requested.

    Raises `UsageError`.
    """
    are_named = config.args_source is pytest.Config.ArgsSource.ARGS
    if config.getoption("--attention") and not are_named and config.rootpath == Path(__file__).parents[1]:
        config.args = []
    path = config.getoption("--attention-summary")
    if path is not None and config.getoption("--attention") and not hasattr(config, "workerinput"):
        from harness.support.errors import UsageError
        from harness.support.file_replacement import require_writable

        try:
            require_writable(path)
        except UsageError as error:
            raise pytest.UsageError(f"--attention-summary: {error}") from error
        config.pluginmanager.register(SummaryWriter(path, config.getoption("--attention")), "attention-summary")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Add a collector for each `--attention` to those of the session's files."""
    report = yield
    if isinstance(collector, pytest.Session) and report.passed:
        for target in collector.config.getoption("--attention"):
            node: pytest.Collector = Battery.from_parent(collector, name=f"attention: {target}", nodeid=target)
            node.stash[_TARGET] = target
            report.result.append(node)
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the processes in which variants ran."""
    if config.getoption("--attention", []):
        from harness.execution.isolation.process import end_planners

        end_planners()


_TARGET = pytest.StashKey[str]()
_PROPERTY = "attention"
"""Key of a test report's property: the variant and the demand that was tested."""


class SummaryWriter:
    """Collects the outcomes of all tests and writes the summary."""

    def __init__(self, path: Path, targets: list[str]) -> None:
        self._path, self._targets = path, targets
        self._outcomes: dict[tuple[str, str], tuple[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of a demand."""
        about: Any = dict(report.user_properties).get(_PROPERTY)
        if about is not None and (report.when == "call" or report.outcome != "passed"):
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            # With several processes, each announces first which one it was.
            lines = [line for line in text.splitlines() if not line.startswith("[gw")]
            self._outcomes[about[0], about[1]] = report.outcome, "\n".join(lines)

    def pytest_sessionfinish(self) -> None:
        """Write the summary atomically. If a table cannot be made, the reason takes its place."""
        from harness.studies.fuzz.conformance import Outcome, battery_report
        from harness.support.errors import SandboxError
        from harness.support.file_replacement import replace_files

        found = [Outcome(*about, outcome, text) for about, (outcome, text) in self._outcomes.items()]
        tables = []
        for target in self._targets:
            try:
                tables += _tables(target, {each.variant for each in found})
            except SandboxError as error:
                tables.append(f"{target}: {error}")
        replace_files({self._path: battery_report(found, tables).encode()})


def _tables(target: str, tested: set[str]) -> list[str]:
    """The tables of `compare` for the tested variants of one target, one per operation."""
    from harness.execution.isolation.variants import variants_of
    from harness.model.discovery import named_origin, plugin_file
    from harness.studies.calls import compare

    origin = named_origin(target)
    names: dict[str, list[str]] = {}
    for variant in variants_of(origin):
        if variant.name in tested:
            names.setdefault(variant.operation, []).append(variant.name)
    return [
        compare(variants=chosen, operation=operation, plugin=plugin_file(origin), device="emulator").render("markdown")
        for operation, chosen in names.items()
    ]


class Battery(pytest.Collector):
    """Collector of the variants that one module or file registers."""

    def collect(self) -> Iterator[pytest.Item]:
        """A test for each variant and demand. Raises `CollectError` if the target cannot be loaded."""
        from harness.execution.isolation.variants import variants_of
        from harness.model.discovery import named_origin
        from harness.support.errors import SandboxError
        from harness.support.hypothesis_loading import load_hypothesis

        target, said = self.stash[_TARGET], self.config.getoption("--attention-examples")
        try:
            load_hypothesis()
        except SandboxError as error:
            raise self.CollectError(f"--attention {target}: {error}") from error
        from harness.studies.fuzz.conformance import DEFAULT_EXAMPLES, DEMANDS, Subject

        examples = DEFAULT_EXAMPLES if said is None else said
        if examples < 1:
            raise self.CollectError(f"--attention-examples is {examples}; it has to be at least 1")
        origin: Origin = named_origin(target)
        try:
            variants = variants_of(origin)
        except SandboxError as error:
            raise self.CollectError(f"--attention {target}: {error}") from error
        for variant in variants:
            subject = Subject(variant, origin, examples, self.config.getoption("--attention-seed"))
            for demand in DEMANDS.values():
                item = DemandItem.from_parent(self, name=f"{variant.name}::{demand.name}")
                item.subject, item.demand = subject, demand
                item.user_properties.append((_PROPERTY, (variant.name, demand.name)))
                yield item


class Broken(Exception):
    """A variant does not meet a demand. The message says where and how to reproduce it."""


class DemandItem(pytest.Item):
    """The test of one demand on one variant."""

    subject: Subject
    demand: Demand

    def runtest(self) -> None:
        """Fail with what is wrong, or skip with the reason why the demand does not apply."""
        from harness.studies.fuzz.conformance import DoesNotApply, FailsAlready
        from harness.support.errors import SandboxError

        try:
            reason = self.demand.broken(self.subject)
        except FailsAlready as why:
            if self._answer_is_tested():
                pytest.skip(str(why))
            reason = self.subject.wrong_answer
        except DoesNotApply as why:
            pytest.skip(str(why))
        except SandboxError as error:
            reason = str(error)
        if reason is not None:
            raise Broken(f"{self.subject.variant.name}: {reason}")

    def _answer_is_tested(self) -> bool:
        """Whether this session tests the variant's answer as well, and so reports why it is wrong."""
        return any(
            isinstance(item, DemandItem) and item.subject is self.subject and item.demand.name == "answer"
            for item in self.session.items
        )

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The message alone: a traceback would show the harness, not the kernel."""
        if isinstance(excinfo.value, Broken):
            return f"{excinfo.value}\nchecked: {self.demand.idea}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """The location and headline of a failure."""
        return self.config.rootpath, None, f"{self.subject.variant.name}: {self.demand.name}"
