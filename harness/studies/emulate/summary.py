"""Describes what a program's kernels moved, and what the sanitizer found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.device.driver.launch_log import KernelLog, LaunchLog
from harness.model.finding import Finding
from harness.support.source_text import short_name
from harness.text.findings import findings_in_words
from harness.text.tables import table


def summary_text(log: LaunchLog, unsupported: Mapping[str, int]) -> str:
    """A section per kernel, and the functions that are not supported."""
    parts = [_kernel_text(kernel) for kernel in log.kernels] or ["no kernel was launched\n"]
    if unsupported:
        parts.append(f"not supported, and called: {', '.join(sorted(unsupported))}\n")
    return "\n".join(parts)


def _kernel_text(kernel: KernelLog) -> str:
    times = "once" if kernel.launches == 1 else f"{kernel.launches:,} times"
    rows = [
        [
            site.buffer,
            site.kind,
            f"{short_name(site.file)}:{site.line}" if site.file else "",
            f"{site.requests:,}",
            f"{site.requested_bytes:,}",
            f"{site.sector_bytes:,}",
        ]
        for site in kernel.sites
    ]
    head = f"{kernel.name}, launched {times}: {kernel.warp_instructions:,} warp instructions\n"
    if not rows:
        return head
    columns = ["buffer", "access", "line", "requests", "requested bytes", "sector bytes"]
    return f"{head}{table(columns, rows, [False] * 3 + [True] * 3)}\n"


def findings_text(findings: Sequence[Finding]) -> str:
    """The findings in words; a sentence if there are none."""
    return "\n".join(findings_in_words(findings, None)) or "the sanitizer found nothing"
