"""The notes below the tables of a traffic report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.execution.traffic.traffic_account import TrafficAccount
from harness.model.operation import IoBound, operation_of
from harness.model.traffic import links_in_words
from harness.text.tables import device_line, mib, smallest_of

if TYPE_CHECKING:
    from harness.studies.traffic.report import TrafficReport


def footnotes(report: TrafficReport) -> list[str]:
    """Notes on the device, the verdict, the claim, and the levels of the tables."""
    account = report.account
    notes = [
        f"Device: {device_line(account.device)}. MiB: 2^20 bytes. Buffers, launches and lines are at the sectors "
        "level; an atomic counts as a read and a write."
    ]
    notes.append(_answer(account))
    if account.claim_holds is not None:
        claimed, counted = account.level("claimed"), account.level("sectors")
        notes.append(
            "Claim: exact."
            if account.claim_holds
            else f"Claim: wrong. It states {claimed.read_bytes:,} bytes read and {claimed.write_bytes:,} "
            f"written; counted: {counted.read_bytes:,} and {counted.write_bytes:,}."
        )
        notes += [f"Claim, {gap}." for gap in account.claim_gap]
        if account.claimed_links != account.links:
            claimed_links = links_in_words(account.claimed_links or ())
            notes.append(f"Claim between devices: wrong. It states {claimed_links}; the table has the counted bytes.")
    if account.device_bytes:
        notes.append(
            "Links: bytes that copies move from one device to another, whole buffers or their beginnings; part of no "
            "other level. Held: the device's parts of inputs and outputs, and all buffers of the plan on it."
        )
    notes.append(_caches(report))
    if account.hardware is not None:
        notes.append(
            f"Hardware: Nsight Compute's counters on {device_line(account.hardware.device)}, same plan, same inputs. "
            "Each launch begins with empty caches, so data that the previous launch left in L2 is read from DRAM "
            "again. Written lines that are still in L2 have not reached DRAM. Local memory goes through L2, too."
        )
    notes.append(_local(account, report.spilled_bytes))
    notes.append("Fewest possible: the fewest sectors that can hold the distinct bytes of a request.")
    if report.lines:
        notes.append(
            "Wavefronts: passes over the 32 banks of 4 bytes. Fewest possible: without conflicts (1; 2 if each lane "
            "accesses 8 bytes, 4 if it accesses 16; half of that for loads in which neighbouring lanes read the same "
            "address). Atomics are not counted."
            if account.shared
            else "Shared memory: no loads or stores."
        )
    if report.lines and account.tensor:
        notes.append("Tensor memory: an operand is what a product or copy of Blackwell's reads from shared memory.")
    if operation_of(report.account.problem).io_bound is not None:
        notes.append(_bound(report.bound))
    return notes


def _answer(account: TrafficAccount) -> str:
    if account.verdict is None:
        return "Verdict: not checked."
    ratio = account.error_over_budget
    return f"Verdict: {account.verdict}{'' if ratio is None else f', error / budget {ratio:.3f}'}."


def _caches(report: TrafficReport) -> str:
    caches = report.account.caches
    if caches is None and report.account.problem.devices > 1:
        return "L2 and DRAM are unknown: caches of several devices, and what copies leave in them, are not modelled."
    if caches is None:
        return (
            "L2 and DRAM are unknown: without ptxas, the number of registers is unknown, and so is the number of "
            "blocks that run at the same time."
        )
    begin = (
        "each launch begins with empty caches (--cache-control all)"
        if report.flushed
        else "L2 begins empty and stays warm from launch to launch (--cache-control none)"
    )
    dirty = size_or_zero(caches.dirty_bytes, caches.dirty_bytes)
    return (
        f"L2 and DRAM: modelled after the caches of the {report.gpu}; {begin}. At the end, {dirty} MiB of the written "
        "data are still in L2. 'code': the instructions and parameters that launches read."
    )


def _local(account: TrafficAccount, spilled_bytes: int) -> str:
    local = account.local
    spills = f"ptxas spills {spilled_bytes:,} bytes per thread" if spilled_bytes else ""
    if not local.count.requests:
        return f"Local memory: none in PTX; {spills}, which are not counted." if spills else "Local memory: none."
    smallest = smallest_of((local.read.sector_bytes, local.written.sector_bytes))
    read, written = (size_or_zero(count.sector_bytes, smallest) for count in (local.read, local.written))
    return (
        f"Local memory: {read} MiB read, {written} MiB written in {local.count.requests:,} requests, by arrays that "
        "the compiler could not keep in registers, because they are indexed by a variable or too large. Make their "
        "indices compile-time constants (unroll the loops), or give each thread fewer elements. Claims and the figures "
        "of launches, L2 and DRAM do not include local memory."
        + (f" In addition, {spills}, which are not counted." if spills else "")
    )


def _bound(bound: IoBound | None) -> str:
    name = "I/O lower bound (Saha and Ye, arXiv 2402.07443): Omega(min(N^2 d / sqrt(M), N^2 d^2 / M)) elements per head"
    if bound is None:
        return (
            f"{name}. M is not known here, because ptxas, which reports how many registers the kernels use, is missing."
        )
    text = (
        f"{name}, where M is the number of elements that fit on chip. One block has {bound.on_chip_bytes / 1024:,.1f} "
        f"KiB of registers and shared memory, so M = {bound.on_chip_elements:,}, and the expression is "
        f"{mib(bound.expression_bytes, bound.expression_bytes)} MiB for all heads. The bound is asymptotic, with an "
        "unknown constant factor, so it indicates an order of magnitude, not an exact limit."
    )
    if not bound.applies:
        text += " Here, M >= N d: the keys and values of a head fit on chip, so the compulsory bytes are the bound."
    return text


def size_or_zero(value: int, smallest: int) -> str:
    """Bytes in MiB, with digits as `smallest` needs; 0 without a fraction."""
    return mib(value, smallest) if value else "0"
