"""A piece of work that one worker of a crew does, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.support.errors import SandboxError


class WorkerLost(SandboxError):
    """A piece of work lost its worker every time that it was tried."""


@dataclass(eq=False)
class Job:
    """One piece of work."""

    function: Callable[[Any], Any]
    argument: Any
    result: Any = None
    error: Exception | None = None
    is_done: bool = False
    is_wanted: bool = True
    tried: list[str] = field(default_factory=list)
    """Addresses of the workers that it has lost, or that were unfit for it."""
    reason: str = ""
    """What became of the last one."""
    finished_at: str | None = None
    """Where it is done, and its result on its way."""
    lost_results: int = 0
    """How often that was lost on its way."""

    def outcome(self) -> Any:
        """The result. Raises what was raised."""
        assert self.is_done
        if self.error is not None:
            raise self.error
        return self.result
