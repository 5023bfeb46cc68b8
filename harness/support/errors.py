"""All errors that a user can encounter, in one class hierarchy.

Each message says what was wrong, where, and what to do.
"""

from __future__ import annotations

from typing import Any


class SandboxError(Exception):
    """Base class of everything that the sandbox raises on purpose. The message is one complete sentence or two."""


class UsageError(SandboxError):
    """The call was wrong (a name, a size, a file). The command line ends with exit status 2."""


class ProblemError(UsageError):
    """The fields of a `Problem` do not describe an attention problem."""


class UnsupportedProblem(UsageError):
    """An explicitly named variant does not support this problem. `reason` is the variant's own."""

    def __init__(self, variant: str, reason: str) -> None:
        super().__init__(f"{variant} does not support this problem: {reason}")
        self.reason = reason


class PluginError(UsageError):
    """A plugin cannot be imported, registers nothing, or registers a name that is taken."""


class StoreError(UsageError):
    """The store of results cannot be used: damaged, busy, full, or of a newer version."""


class WorkersGone(SandboxError):
    """The scheduler or all workers are gone. Finished work is stored, and the same command resumes."""


class PlanError(SandboxError):
    """A variant's plan is inconsistent: an unknown buffer, a bad grid, an argument that does not fit its parameter."""


class ClusterTooLarge(PlanError):
    """A cluster has more blocks than all GPUs with clusters launch."""


class CooperativeLaunchTooLarge(PlanError):
    """A cooperative launch has more blocks than the GPU holds at a time."""


class TooManyRegisters(PlanError):
    """A block's threads need more registers together than a multiprocessor has."""


class PlannerLost(SandboxError):
    """The process that runs a variant's own code gave no answer. The message says why."""


class PlannerDied(PlannerLost):
    """The process that runs a variant's own code ended."""


class PlannerHung(PlannerLost):
    """The process that runs a variant's own code exceeded its time limit and was killed."""


class CompileError(SandboxError):
    """A kernel did not compile. The message contains the compiler's log."""


class UnsupportedPtxVersion(CompileError):
    """A PTX module has a newer version than is known."""


class UnsupportedInstruction(SandboxError):
    """The emulator does not support a PTX form. The message names the opcode and its line."""


class KernelFault(SandboxError):
    """A kernel did something invalid. `kind` is one of `KernelFault.KINDS`."""

    KINDS = (
        "out of bounds", "misaligned", "barrier deadlock", "divergent barrier", "step limit", "trap", "copy size",
        "copies in flight", "printing", "lane outside of its mask", "input written", "no mbarrier", "mbarrier count",
        "mbarrier bytes", "no tensor map", "bulk copies in flight", "matrix descriptor", "products in flight",
        "cluster rank", "reduction type", "tensor coordinate", "read-only memory", "register deadlock",
    )  # fmt: skip

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.findings: tuple[Any, ...] = ()
        """The sanitizer's findings before the fault, as `harness.model.finding.Finding`."""


class CountersUnavailable(SandboxError):
    """Nsight Compute could not read the GPU's counters. The message is one line with the reason and a remedy."""


class OrderNotRevealed(SandboxError):
    """The order in which a sum is added cannot be determined. The message says why."""
