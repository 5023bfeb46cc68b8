"""Every error that a user can meet, in one tree. Each message says what was wrong, where, and what to do."""

from __future__ import annotations

from typing import Any


class SandboxError(Exception):
    """The root: whatever the sandbox raises on purpose. The message is one complete, helpful sentence or two."""


class UsageError(SandboxError):
    """The call was wrong (a name, a size, a file). The command line ends with exit status 2."""


class ProblemError(UsageError):
    """The fields of a `Problem` do not describe an attention problem."""


class UnsupportedProblem(UsageError):
    """A variant that was asked for by name does not take this problem. `reason` is the variant's own."""

    def __init__(self, variant: str, reason: str) -> None:
        super().__init__(f"{variant} does not take this problem: {reason}")
        self.reason = reason


class PluginError(UsageError):
    """A plugin does not import, registers nothing, or registers a name that is taken."""


class StoreError(UsageError):
    """The store of kept results cannot be used: damaged, busy, full, of a newer version."""


class WorkersGone(SandboxError):
    """The scheduler is gone, or all workers are. What is done is kept, and the same command goes on."""


class PlanError(SandboxError):
    """A variant's plan is inconsistent: an unknown buffer, a bad grid, an argument that does not fit its parameter."""


class PlannerLost(SandboxError):
    """The process that runs a variant's own code gave no answer. The message says what became of it."""


class PlannerDied(PlannerLost):
    """It ended."""


class PlannerHung(PlannerLost):
    """It was ended: its time was over."""


class CompileError(SandboxError):
    """A kernel did not compile. The message carries the compiler's own log."""


class UnsupportedInstruction(SandboxError):
    """The emulator does not know a PTX form. The message names the opcode and its line."""


class KernelFault(SandboxError):
    """A kernel did what a correct kernel must not do. `kind` is one of the names in `KernelFault.KINDS`."""

    KINDS = (
        "out of bounds",
        "misaligned",
        "barrier deadlock",
        "divergent barrier",
        "step limit",
        "trap",
        "copy size",
        "copies in flight",
        "printing",
        "lane outside of its mask",
        "input written",
        "no mbarrier",
        "mbarrier count",
        "mbarrier bytes",
        "no tensor map",
        "bulk copies in flight",
        "matrix descriptor",
        "products in flight",
        "cluster rank",
        "reduction type",
        "tensor coordinate",
        "read-only memory",
    )

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.findings: tuple[Any, ...] = ()
        """What the sanitizer had found before, as `harness.model.finding.Finding`."""
        self.may_be_awaiting = False
        """Whether the block at fault may wait in a loop for one that had not started, for they ran one by one."""


class CountersUnavailable(SandboxError):
    """Nsight Compute could not read the GPU's counters. The message is one line that says why, and what would help."""


class OrderNotRevealed(SandboxError):
    """In which order a sum is added does not show. The message says why."""
