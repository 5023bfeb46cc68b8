"""Design decisions with several effects: how to tell that two variants differ in one, and the effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from harness.execution.traffic.counts import READS
from harness.execution.traffic.instruction_counts import BARRIER
from harness.model.problem import ELEMENT_BYTES
from harness.studies.why import causes
from harness.studies.why.causes import Cause
from harness.studies.why.profile import LaunchProfile, Profile
from harness.support.memory_units import SECTOR_BYTES

MANY_MORE = 1.5
"""A ratio that only the tile size explains: tiles come in powers of two."""
NOTABLY_MORE = 1.15
MANY_TIMES = 4
"""A kernel that reads each input fewer times than this has nothing to gain from tiles."""
FEW_PRODUCTS = 4
"""Below this number of products for each element read, a kernel has no tiles: the smallest tiles have 8 rows."""


@dataclass(frozen=True)
class Decision:
    """One design decision."""

    cause: Cause
    """The cause under which it is listed."""
    effects: tuple[Cause, ...]
    """Causes that follow from it and are then not listed separately."""
    growth: Callable[[Profile, Profile], float] | None = None
    """How many times as large it makes an effect, at most; None if it explains all of them."""


def decision_between(one: Profile, other: Profile) -> Decision | None:
    """The decision that `one` has made and `other` has not, and that explains most; None if there is none."""
    if _uses_tensor_cores(other) and not _uses_tensor_cores(one):
        return NO_TENSOR_CORES
    if _uses_tensor_cores(one) and not _uses_tensor_cores(other):
        return None
    if _has_smaller_tiles(one, other):
        return SMALLER_TILES
    if _has_smaller_steps(one, other):
        return SMALLER_STEPS
    return REREAD if _reads_again(one, other) and not _has_smaller_tiles(other, one) else None


def _uses_tensor_cores(profile: Profile) -> bool:
    return any(row.flops for launch in profile.launches for row in launch.instructions.counts)


def _has_smaller_tiles(one: Profile, other: Profile) -> bool:
    """Whether `one` has smaller tiles: many more blocks, which together read the inputs notably more often.

    Each tile of rows reads all keys. Smaller steps through the keys read none of them again; their cost is barriers and
    waits.
    """
    if len(one.launches) != len(other.launches) or not (barriers_met(one) and barriers_met(other)):
        return False
    reads_a, reads_b = (input_reads(profile).total() for profile in (one, other))
    more_blocks = _tiled_blocks(one) >= MANY_MORE * _tiled_blocks(other)
    return more_blocks and reads_a >= NOTABLY_MORE * reads_b > 0


def growth_of_reads(one: Profile, other: Profile) -> float:
    """How many times as often `one` reads an input as `other`, for the input where that is most; at least 1."""
    a, b = input_reads(one), input_reads(other)
    return max((a[name] / b[name] for name in a if b[name]), default=1.0)


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


def has_no_tiles(profile: Profile) -> bool:
    """Whether every row reads the inputs for itself: many reads in total, and few products for each element read.

    A tile of n rows multiplies each element of K and V that it reads n times.
    """
    problem, read_bytes = profile.problem, input_reads(profile).total()
    element_bytes = ELEMENT_BYTES[problem.outputs[0].dtype]
    if read_bytes < MANY_TIMES * sum(tensor.size_bytes for tensor in problem.inputs):
        return False
    return problem.flops / 2 < FEW_PRODUCTS * read_bytes / element_bytes


def barriers_met(profile: Profile) -> float:
    """Barriers executed, summed over the blocks of kernels with barriers."""
    return sum(_barriers(launch) for launch in profile.launches)


def _has_smaller_steps(one: Profile, other: Profile) -> bool:
    """Whether `one` reads no input again, but waits for many more, smaller tiles.

    Barriers grow too, if less than twice as much: kernels may have two or three of them a step. Waits that grow more
    are those of several loads in a step.
    """
    if len(one.launches) != len(other.launches) or _reads_again(one, other):
        return False
    if not (barriers_met(one) and barriers_met(other) and _waits(one) and _waits(other)):
        return False
    steps, barriers = _growth_of_steps(one, other), barriers_met(one) / barriers_met(other)
    return steps >= MANY_MORE and barriers >= NOTABLY_MORE and steps < 2 * barriers


def _growth_of_steps(one: Profile, other: Profile) -> float:
    return _waits(one) / _waits(other)


def _waits(profile: Profile) -> float:
    """Waits for global memory, summed over warps."""
    found = 0.0
    for launch in profile.launches:
        report = launch.instructions
        followed = sum((1 - launch.local_share(row)) * row.waits for row in report.waits)
        found += followed / max(1, report.followed_warps) * launch.blocks * launch.warps
    return found


def _tiled_blocks(profile: Profile) -> int:
    return sum(launch.blocks for launch in profile.launches if _barriers(launch))


def _barriers(launch: LaunchProfile) -> float:
    return launch.instructions.warps_of(lambda row: row.kind == BARRIER and row.form.startswith("bar")) / launch.warps


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
        causes.INTEGER,
        causes.SHUFFLES,
    ),
    growth_of_reads,
)
REREAD = Decision(
    causes.REREAD, (causes.BYTES, causes.MEMORY, causes.SHARED, causes.BARRIERS, causes.LATENCY), growth_of_reads
)
SMALLER_STEPS = Decision(
    causes.STEPS, (causes.BARRIERS, causes.CONTROL, causes.INTEGER, causes.SHUFFLES, causes.LATENCY), _growth_of_steps
)
