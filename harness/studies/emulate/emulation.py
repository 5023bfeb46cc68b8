"""Starts the emulated driver in this process, and reports what the program's kernels did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.device.driver.launch_log import KernelLog, LaunchLog
from harness.device.result import traffic_table
from harness.model.finding import Finding
from harness.text.findings import findings_in_words

if TYPE_CHECKING:
    from harness.device.driver.process import Driver


def summary_text(log: LaunchLog, unsupported: Mapping[str, int]) -> str:
    """A section per kernel, and the functions that are not supported."""
    parts = [_kernel_text(kernel) for kernel in log.kernels] or ["no kernel was launched\n"]
    if unsupported:
        parts.append(f"called, but not supported: {', '.join(sorted(unsupported))}\n")
    return "\n".join(parts)


def _kernel_text(kernel: KernelLog) -> str:
    times = "once" if kernel.launches == 1 else f"{kernel.launches:,} times"
    head = f"{kernel.name}, launched {times}: {kernel.warp_instructions:,} warp instructions\n"
    return f"{head}{traffic_table(kernel.sites)}\n" if kernel.sites else head


def findings_text(findings: Sequence[Finding]) -> str:
    """All findings in words; a sentence if there are none."""
    return "\n".join(findings_in_words(findings, None, most=None)) or "the sanitizer found nothing"


@dataclass(frozen=True)
class Emulation:
    """The emulated GPU of this process."""

    driver: Driver

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The sanitizer's findings so far. Empty without `sanitize`."""
        return tuple(finding for kernel in self.driver.log.kernels for finding in kernel.findings)

    def summary(self) -> str:
        """What each kernel moved, by buffer and source line."""
        return summary_text(self.driver.log, self.driver.unsupported)

    def findings_report(self) -> str:
        """The sanitizer's findings in words."""
        return findings_text(self.findings)


def emulate(*, gpu: str = "h100", sanitize: bool = False, seed: int = 0, step_limit: int | None = None) -> Emulation:
    """Let programs of this process run on an emulated GPU, for the rest of its life.

    Call it before a library that uses CUDA is imported. `gpu` is the GPU that programs see, one of `GPUS`. Python
    processes that this one starts see it, too. With `sanitize`, races and reads of unwritten memory are recorded,
    and kernels take longer; a `seed` other than 0 changes the order of their blocks and warps. `step_limit` is the
    maximum number of instructions of a warp, by default 1,000,000,000. A second call with the same options returns
    the same emulation. Raises `UsageError` for an unknown GPU and `SandboxError` if a CUDA driver is already
    loaded.
    """
    from harness.device.driver.child_processes import start_driver, start_in_children

    driver = start_driver(gpu, sanitize=sanitize, seed=seed, step_limit=step_limit)
    start_in_children(gpu)
    return Emulation(driver)
