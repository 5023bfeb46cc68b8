"""How far a campaign goes, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.model.build import Build
from harness.model.operation import Operation
from harness.model.property import SANITIZER
from harness.options.machine import Machine
from harness.support.errors import UsageError

DEFAULT_EXAMPLES = 200


@dataclass(frozen=True, kw_only=True)
class CampaignSettings:
    """How far a campaign goes."""

    examples: int | None = DEFAULT_EXAMPLES
    """Cases to draw; None: as many as `seconds` allow."""
    seconds: float | None = None
    """When to stop searching; shrinking comes on top."""
    seed: int = 0
    """Same seed, same cases, on the same version of Hypothesis."""
    builds: tuple[Build, ...] | None = None
    """What kernels may have compiled in, the plainest first; None: the operation's own choice."""
    most_tiles: int | None = None
    """Tiles that a problem has at most, none of them long or with a crowd of heads then; None: the usual choice."""
    checks: tuple[str, ...] | None = None
    """Properties that are held in a share of the cases, `SANITIZER` among them; None: all that there are."""
    case_seconds: float = 10.0
    """How long one case may take, compilation apart."""
    shrink_seconds: float = 20.0
    """How long a failure is shrunk at most; then what is smallest so far is reported. 0: it is only looked at again."""
    database: Path | None = None
    """Folder of past failures of this variant, which are tried first; None: none are kept."""


def usual_checks(operation: Operation, machine: Machine) -> tuple[str, ...]:
    """What is held in a share of the cases unless something else is said."""
    return (*operation.properties, *(() if machine.kind == "gpu" else (SANITIZER,)))


def require_check(check: str, operation: Operation, machine: Machine) -> None:
    """Raise `UsageError` where there is no such check, or not on this machine."""
    if check == SANITIZER and machine.kind == "gpu":
        raise UsageError("the sanitizer looks on where the emulator runs; add --device emulator")
    if check != SANITIZER and check not in operation.properties:
        raise UsageError(f"no property {check!r}; there are {', '.join((*operation.properties, SANITIZER))}")


def require_sensible(how: CampaignSettings, operation: Operation, machine: Machine) -> None:
    """Raise `UsageError` for settings that make no sense."""
    if how.examples is None and how.seconds is None:
        raise UsageError("a campaign needs an end: a number of examples, of seconds, or both")
    for name, value in (("examples", how.examples), ("seconds", how.seconds), ("tiles", how.most_tiles)):
        if value is not None and not value > 0:
            raise UsageError(f"--{name} is {value:g}; it has to be more than 0")
    for check in how.checks or ():
        require_check(check, operation, machine)
