"""Lists a variant's kernels: source, PTX, and resource usage. Needs no GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tabulate import tabulate

from harness.compilers import CompiledKernel
from harness.compilers.ptxas import Resources, resources
from harness.execution.planning.variant_calls import compiled_launches, make_plan
from harness.model.plan import Launch
from harness.model.problem import BaseProblem
from harness.model.variant import Variant

Form = Literal["source", "expanded", "ptx"]
"""How a kernel is shown: as it is written; only the parts that are compiled for this problem; or the PTX."""


@dataclass(frozen=True)
class KernelListing:
    """The kernel of one launch, compiled for that launch's arguments."""

    launch: Launch
    """The launch in the plan."""
    compiled: CompiledKernel
    """The PTX and its entry."""
    resources: Resources | None
    """Resource usage by ptxas; None if ptxas is not installed."""

    def text(self, form: Form) -> str:
        """The kernel in that form."""
        if form == "ptx":
            return self.compiled.ptx
        toolchain = self.compiled.toolchain
        return toolchain.expanded(self.launch.kernel) if form == "expanded" else toolchain.source(self.launch.kernel)


def list_kernels(variant: Variant, problem: BaseProblem, arch: str) -> list[KernelListing]:
    """Compile every launch of the variant's plan, in order.

    Raises `UnsupportedProblem` if the variant does not support the problem, and `PlanError` or `CompileError` if
    planning or compiling fails.
    """
    return [
        KernelListing(launch, made, resources(made.ptx, made.arch, made.entry, made.max_registers))
        for launch, made in compiled_launches(make_plan(variant, problem, arch), problem, arch)
    ]


def devices_in_words(variant: Variant, problem: BaseProblem) -> str:
    """What the plan copies between devices, and what each of them holds, as lines; empty if one device computes it."""
    if problem.sharing is None:
        return ""
    plan = make_plan(variant, problem)
    copied = sum(copy.size_bytes for copy in plan.copies)
    held = ", ".join(f"{size:,}" for size in plan.device_bytes(problem))
    return (
        f"{len(plan.copies)} copies between devices, {copied:,} bytes; 'traffic' shows them by link.\n"
        f"Bytes that devices 0 to {problem.devices - 1} hold: {held}.\n\n"
    )


_TITLES = {"source": "Source", "expanded": "Expanded source", "ptx": "PTX"}


def render_kernels(listings: list[KernelListing], form: Form = "source") -> str:
    """A table of resources, then each kernel in that form."""
    headers = ["kernel", "grid", "block", "registers", "spilled\nbytes", "static\nshared", "dynamic\nshared"]
    rows, align = [_line(each) for each in listings], list(_ALIGN)
    if any(each.launch.device for each in listings):
        headers.insert(1, "device")
        align.insert(1, "right")
        for row, each in zip(rows, listings):
            row.insert(1, str(each.launch.device))
    stacks = [0 if each.resources is None else each.resources.stack_bytes for each in listings]
    if any(stacks):
        at = headers.index("static\nshared")
        headers.insert(at, "local\nbytes")
        align.insert(at, "right")
        for row, stack_bytes in zip(rows, stacks):
            row.insert(at, f"{stack_bytes:,}")
    parts = [tabulate(rows, headers, disable_numparse=True, colalign=align)]
    if any(each.resources is None for each in listings):
        parts.append("ptxas is not installed, so registers, spills and static shared memory are unknown.")
    else:
        parts.append("Registers and spills per thread, shared memory in bytes per block, as ptxas reports them.")
    if any(stacks):
        parts.append(
            "Local: memory of each thread for arrays that are indexed by a variable or too large for registers, and\n"
            "for spills. Its bytes move like any others, and 'traffic' counts those of the arrays. Constant indices\n"
            "(unrolled loops) or fewer elements per thread keep arrays in registers."
        )
    shown: set[str] = set()
    for each in listings:
        text = each.text(form)
        if text not in shown:
            shown.add(text)
            options = " ".join(each.compiled.toolchain.options(each.launch.kernel))
            title = f"{_TITLES[form]} of {each.launch.kernel_name}, {each.compiled.arch}"
            parts.append(f"--- {title}{', ' + options if options else ''}\n{text.rstrip()}")
    return "\n\n".join(parts) + "\n"


_ALIGN = ("left", "left", "left", "right", "right", "right", "right")


def _line(listing: KernelListing) -> list[str]:
    launch, used = listing.launch, listing.resources
    return [
        launch.kernel_name,
        _extents(launch.grid, "blocks") + _clusters(launch.cluster) + ", overlapping" * launch.overlaps_previous,
        _extents(launch.block, "threads"),
        "-" if used is None else str(used.registers),
        "-" if used is None else f"{used.spill_store_bytes + used.spill_load_bytes:,}",
        "-" if used is None else f"{used.shared_bytes:,}",
        f"{launch.shared_bytes:,}",
    ]


def _clusters(cluster: tuple[int, ...] | None) -> str:
    return "" if cluster is None else f" in clusters of {' x '.join(str(extent) for extent in cluster)}"


def _extents(extents: tuple[int, ...], unit: str) -> str:
    shape = " x ".join(str(extent) for extent in extents)
    return f"{shape} = {math.prod(extents):,} {unit}" if len(extents) > 1 else f"{shape} {unit}"
