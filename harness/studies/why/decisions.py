"""Design decisions with several effects: how to tell that two variants differ in one, and the effects."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from harness.execution.traffic.counts import READS
from harness.execution.traffic.instruction_counts import BARRIER
from harness.studies.why import causes
from harness.studies.why.causes import Cause
from harness.studies.why.profile import Profile
from harness.support.memory_units import SECTOR_BYTES

MANY_MORE = 1.5
"""A ratio that only the tile size explains: tiles come in powers of two."""
NOTABLY_MORE = 1.15


@dataclass(frozen=True)
class Decision:
    """One design decision."""

    cause: Cause
    """The cause under which it is listed."""
    effects: tuple[Cause, ...]
    """Causes that follow from it and are then not listed separately."""


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
    """Steps through tiles, for kernels with barriers."""

    blocks: int
    barriers: float
    """Barriers executed, summed over blocks."""
    waits: float
    """Waits for loads, summed over warps."""


def decision_between(one: Profile, other: Profile) -> Decision | None:
    """The decision that `one` has made and `other` has not, and that explains most; None if there is none."""
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
    """Whether `one` has smaller tiles.

    Either it has many more blocks, which together read notably more, because each tile of rows reads all keys; or its
    blocks execute many more waits, with fewer bytes each, and notably more barriers, because the tiles of keys are
    smaller. Barriers need not grow as much: two kernels may have two and three of them a tile. A repeated read of a
    buffer would leave the bytes per wait equal; a missing stage would leave the number of waits equal.
    """
    if len(one.launches) != len(other.launches):
        return False
    a, b = _steps(one), _steps(other)
    reads_a, reads_b = (sum(input_reads(profile).values()) for profile in (one, other))
    if not (a.barriers and b.barriers and a.waits and b.waits and reads_a and reads_b):
        return False
    more_blocks = a.blocks >= MANY_MORE * b.blocks and reads_a >= NOTABLY_MORE * reads_b
    more_steps = a.waits >= MANY_MORE * b.waits and a.barriers >= NOTABLY_MORE * b.barriers
    return more_blocks or (more_steps and reads_a / a.waits <= reads_b / b.waits / MANY_MORE)


def _reads_again(one: Profile, other: Profile) -> bool:
    """Whether `one` reads the inputs notably more often, both some input and all together."""
    a, b = input_reads(one), input_reads(other)
    some = any(a[name] >= NOTABLY_MORE * b[name] > 0 for name in a)
    return some and a.total() >= NOTABLY_MORE * b.total()


def input_reads(profile: Profile) -> Counter[str]:
    """Bytes read of each input, counted as if requests were coalesced."""
    names = {tensor.name for tensor in profile.problem.inputs}
    found: Counter[str] = Counter()
    for launch in profile.launches:
        for site in launch.traffic:
            if site.kind in READS and site.buffer in names:
                found[site.buffer] += SECTOR_BYTES * site.ideal_sectors
    return found


def barriers_met(profile: Profile) -> float:
    """Barriers executed, summed over the blocks of kernels with barriers."""
    return _steps(profile).barriers


def _steps(profile: Profile) -> _Steps:
    blocks, barriers, waits = 0, 0.0, 0.0
    for launch in profile.launches:
        report = launch.instructions
        met = report.warps_of(lambda row: row.kind == BARRIER and row.form.startswith("bar")) / launch.warps
        if met:
            blocks += launch.blocks
            barriers += met
            # Waits for local memory do not depend on tiles.
            followed = sum((1 - launch.local_share(row)) * row.waits for row in report.waits)
            followed /= max(1, report.followed_warps)
            waits += followed * launch.blocks * launch.warps
    return _Steps(blocks, barriers, waits)
