"""Decisions that have several effects at once: what tells that two variants differ in one, and what follows from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from harness.execution.counts import READS, SECTOR_BYTES
from harness.execution.instruction_counts import BARRIER
from harness.studies.why import causes
from harness.studies.why.causes import Cause
from harness.studies.why.profile import Profile

MANY_MORE = 1.5
"""A ratio that no other habit of a kernel makes: tiles come in powers of two."""
NOTABLY_MORE = 1.15


@dataclass(frozen=True)
class Decision:
    """One thing to change."""

    cause: Cause
    """What it is called."""
    effects: tuple[Cause, ...]
    """What follows from it, which is then not told for itself."""


NO_TENSOR_CORES = Decision(
    causes.NO_TENSOR_CORES, (causes.ARITHMETIC, causes.SHARED, causes.MEMORY, causes.LATENCY, causes.FEW_WARPS)
)
SMALLER_TILES = Decision(
    causes.TILE,
    (
        causes.BYTES,
        causes.MEMORY,
        causes.SHARED,
        causes.BARRIERS,
        causes.CONTROL,
        causes.LATENCY,
        causes.FEW_WARPS,
        causes.INTEGER,
        causes.SHUFFLES,
    ),
)
REREAD = Decision(causes.REREAD, (causes.BYTES, causes.MEMORY, causes.SHARED, causes.BARRIERS, causes.LATENCY))


@dataclass(frozen=True)
class _Steps:
    """How the kernels of a variant that have barriers go through their tiles."""

    blocks: int
    barriers: float
    """Times that a block meets at a barrier, of all blocks."""
    waits: float
    """Times that a warp waits for loads, of all warps."""


def decision_between(one: Profile, other: Profile) -> Decision | None:
    """The one that `one` has taken and `other` has not, and that explains most; None where none is told apart."""
    if _uses_tensor_cores(other) and not _uses_tensor_cores(one):
        return NO_TENSOR_CORES
    if _uses_tensor_cores(one) and not _uses_tensor_cores(other):
        return None
    if _has_smaller_tiles(one, other):
        return SMALLER_TILES
    return REREAD if _reads_again(one, other) and not _has_smaller_tiles(other, one) else None


def _uses_tensor_cores(profile: Profile) -> bool:
    return any(row.flops for launch in profile.launches for row in launch.instructions.counts)


def _has_smaller_tiles(one: Profile, other: Profile) -> bool:
    """Whether `one` has.

    Either it has many more blocks, which read notably more together because each tile of rows reads all keys; or its
    blocks wait and meet many more times, for fewer bytes each time, because the tiles of keys are smaller. A buffer
    that is read again makes for as many bytes per wait; a stage less makes for as many waits.
    """
    if len(one.launches) != len(other.launches):
        return False
    a, b = _steps(one), _steps(other)
    reads_a, reads_b = (sum(input_reads(profile).values()) for profile in (one, other))
    if not (a.barriers and b.barriers and a.waits and b.waits and reads_a and reads_b):
        return False
    more_blocks = a.blocks >= MANY_MORE * b.blocks and reads_a >= NOTABLY_MORE * reads_b
    more_steps = a.waits >= MANY_MORE * b.waits and a.barriers >= MANY_MORE * b.barriers
    return more_blocks or (more_steps and reads_a / a.waits <= reads_b / b.waits / MANY_MORE)


def _reads_again(one: Profile, other: Profile) -> bool:
    """Whether the inputs are read notably more often by `one`, one of them and all together."""
    a, b = input_reads(one), input_reads(other)
    some = any(a[name] >= NOTABLY_MORE * b[name] > 0 for name in a)
    return some and a.total() >= NOTABLY_MORE * b.total()


def input_reads(profile: Profile) -> Counter[str]:
    """Bytes of each input that are read: as few sectors as coalesced requests would take."""
    names = {tensor.name for tensor in profile.problem.inputs}
    found: Counter[str] = Counter()
    for launch in profile.launches:
        for site in launch.traffic:
            if site.kind in READS and site.buffer in names:
                found[site.buffer] += SECTOR_BYTES * site.ideal_sectors
    return found


def barriers_met(profile: Profile) -> float:
    """Times that a block meets at a barrier, of all blocks that have any."""
    return _steps(profile).barriers


def _steps(profile: Profile) -> _Steps:
    blocks, barriers, waits = 0, 0.0, 0.0
    for launch in profile.launches:
        report = launch.instructions
        met = report.warps_of(lambda row: row.kind == BARRIER and row.form.startswith("bar")) / launch.warps
        if met:
            blocks += launch.blocks
            barriers += met
            # Waits for local memory say nothing about tiles.
            followed = sum((1 - launch.local_share(row)) * row.waits for row in report.waits)
            followed /= max(1, report.followed_warps)
            waits += followed * launch.blocks * launch.warps
    return _Steps(blocks, barriers, waits)
