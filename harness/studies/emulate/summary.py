"""Describes what a program's kernels moved, and what the sanitizer found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.device.driver.launch_log import KernelLog, LaunchLog
from harness.device.result import traffic_table
from harness.model.finding import Finding
from harness.text.findings import findings_in_words


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
