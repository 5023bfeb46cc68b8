"""Settings of a campaign: its limits and its checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.model.cases.build import Build
from harness.model.cases.property import SANITIZER
from harness.model.operation import Operation
from harness.options.machine import Machine
from harness.support.errors import UsageError

DEFAULT_EXAMPLES = 200


@dataclass(frozen=True, kw_only=True)
class CampaignSettings:
    """Limits and checks of a campaign."""

    examples: int | None = DEFAULT_EXAMPLES
    """Number of cases to draw; None for as many as `seconds` allow."""
    seconds: float | None = None
    """Time limit of the search, to which shrinking is added; None for no limit."""
    seed: int = 0
    """Random seed. A seed always draws the same cases, on the same version of Hypothesis."""
    builds: tuple[Build, ...] | None = None
    """Builds of the kernels, the plainest first; None for the operation's own choice."""
    most_tiles: int | None = None
    """Maximum number of tiles of a problem, which then is neither long nor has many heads; None for the default
    sizes."""
    checks: tuple[str, ...] | None = None
    """Properties that are checked in a share of the cases, possibly including `SANITIZER`; None for all of them."""
    only_sanitizer: bool = False
    """Run every case under the sanitizer, in few builds, and ignore wrong values. `checks` is ignored."""
    case_seconds: float = 10.0
    """Time limit of one case, without compilation."""
    shrink_seconds: float = 20.0
    """Time limit for shrinking a failure; the smallest case found by then is reported. With 0, it is only run again."""
    database: Path | None = None
    """Folder of past failures of this variant, which are tried first; None to disable it."""


def usual_checks(operation: Operation, machine: Machine) -> tuple[str, ...]:
    """The default checks, which are applied to a share of the cases."""
    return (*operation.properties, *(() if machine.kind == "gpu" else (SANITIZER,)))


def require_check(check: str, operation: Operation, machine: Machine) -> None:
    """Raise `UsageError` if the check does not exist, or not on this machine."""
    if check == SANITIZER and machine.kind == "gpu":
        raise UsageError("the sanitizer needs the emulator; add --device emulator")
    if check != SANITIZER and check not in operation.properties:
        raise UsageError(f"no property {check!r}; there are {', '.join((*operation.properties, SANITIZER))}")


def require_sensible(how: CampaignSettings, operation: Operation, machine: Machine) -> None:
    """Raise `UsageError` for invalid settings."""
    if how.examples is None and how.seconds is None:
        raise UsageError("a campaign needs a limit: a number of examples, of seconds, or both")
    for name, value in (("examples", how.examples), ("seconds", how.seconds), ("tiles", how.most_tiles)):
        if value is not None and not value > 0:
            raise UsageError(f"--{name} is {value:g}; it has to be more than 0")
    for check in how.checks or ():
        require_check(check, operation, machine)
