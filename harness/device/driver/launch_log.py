"""Collects what the launches of a program moved, by kernel, and what the sanitizer found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.device.result import LaunchResult
from harness.execution.traffic.counts import SiteTraffic, by_place
from harness.model.finding import Finding


@dataclass
class KernelLog:
    """All launches of one kernel."""

    name: str
    launches: int = 0
    warp_instructions: int = 0
    sites: tuple[SiteTraffic, ...] = ()
    """Traffic by buffer, kind of access and source line."""
    findings: list[Finding] = field(default_factory=list)
    """Findings of the sanitizer, each once."""


class LaunchLog:
    """All launches of a program."""

    def __init__(self) -> None:
        self._kernels: dict[str, KernelLog] = {}

    def add(self, result: LaunchResult) -> None:
        """Add a launch that succeeded."""
        log = self._of(result.kernel)
        log.launches += 1
        log.warp_instructions += result.warp_instructions
        log.sites = by_place((*log.sites, *result.traffic))
        self._add_findings(log, result.findings or ())

    def add_fault(self, name: str, findings: Iterable[Finding]) -> None:
        """Add a launch that failed, with the findings before its fault."""
        log = self._of(name)
        log.launches += 1
        self._add_findings(log, findings)

    def _of(self, name: str) -> KernelLog:
        return self._kernels.setdefault(name, KernelLog(name))

    def _add_findings(self, log: KernelLog, findings: Iterable[Finding]) -> None:
        known = {finding.message for finding in log.findings}
        log.findings += [finding for finding in findings if finding.message not in known]

    @property
    def kernels(self) -> list[KernelLog]:
        """The kernels in the order of their first launch."""
        return list(self._kernels.values())
