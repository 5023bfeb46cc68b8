"""The figure of each cause in a profile, in the unit `causes.Cause.unit`, shown next to its predicted time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness.execution.traffic.counts import LOCAL
from harness.execution.traffic.instruction_counts import (
    BARRIER,
    CONTROL,
    CONVERSION,
    FP16,
    FP32,
    FP64,
    INTEGER,
    MEMORY,
    MOVE,
    SHARED,
    SHUFFLE,
    SPECIAL,
    InstructionCount,
)
from harness.studies.why import causes
from harness.studies.why.causes import Cause
from harness.studies.why.decisions import barriers_met
from harness.studies.why.predicted_time import PredictedTime
from harness.studies.why.profile import Profile
from harness.studies.why.shares import ONE_LANE_WILL_DO, cause_of
from harness.studies.why.stalls import launch_of_fewest_warps, warps_there
from harness.support.gpu_data_sheets import WARP_LANES
from harness.support.memory_units import MIB
from harness.support.pipe_rates import LEAST_CYCLES_PER_INSTRUCTION

MEGA = 1e6
_TWO_FLOPS = ("fma", "mad")


def figure(cause: Cause, profile: Profile, time: PredictedTime) -> float | None:
    """The profile's figure for the cause; None if it is not known."""
    return _FIGURES[cause](profile, time)


def ideal_figure(cause: Cause, profile: Profile) -> float | None:
    """The roofline's figure for the cause: matrix products and compulsory bytes only."""
    if cause is causes.ARITHMETIC:
        return profile.problem.flops / MEGA
    return profile.problem.compulsory_bytes / MIB if cause is causes.BYTES else None


def _rows(profile: Profile, kinds: Iterable[str]) -> list[InstructionCount]:
    wanted = set(kinds)
    return [row for launch in profile.launches for row in launch.instructions.counts if row.kind in wanted]


def _warps(*kinds: str) -> Callable[[Profile, PredictedTime], float]:
    return lambda profile, time: sum(row.warps for row in _rows(profile, kinds)) / MEGA


def _lanes(*kinds: str) -> Callable[[Profile, PredictedTime], float]:
    return lambda profile, time: sum(row.lanes for row in _rows(profile, kinds)) / MEGA


def _flops(profile: Profile, time: PredictedTime) -> float:
    plain = sum(
        row.lanes * (2 if row.form.startswith(_TWO_FLOPS) else 1) * (2 if "x2" in row.form else 1)
        for row in _rows(profile, (FP32, FP16))
    )
    return (plain + _tensor_flops(profile)) / MEGA


def _tensor_flops(profile: Profile) -> int:
    return sum(row.flops for launch in profile.launches for row in launch.instructions.counts)


def _idle_percent(profile: Profile, time: PredictedTime) -> float | None:
    kinds = {FP32, FP16, FP64, SPECIAL, INTEGER, CONVERSION, SHARED, SHUFFLE} - {*ONE_LANE_WILL_DO}
    rows = _rows(profile, kinds)
    warps = sum(row.warps for row in rows)
    return 100 - 100 * sum(row.lanes for row in rows) / (WARP_LANES * warps) if warps else None


def _sectors_over_minimum(profile: Profile, time: PredictedTime) -> float | None:
    sites = [site for launch in profile.launches for site in launch.traffic if site.buffer != LOCAL]
    ideal = sum(site.ideal_sectors for site in sites)
    return sum(site.sectors for site in sites) / ideal if ideal else None


def _sector_mebibytes(profile: Profile, time: PredictedTime) -> float:
    return (
        sum(site.sector_bytes for launch in profile.launches for site in launch.traffic if site.buffer != LOCAL) / MIB
    )


def _spilled_bytes(profile: Profile, time: PredictedTime) -> float | None:
    known = [launch.used for launch in profile.launches if launch.used is not None]
    return float(max(used.spill_store_bytes + used.spill_load_bytes for used in known)) if known else None


def _cycles_per_instruction(profile: Profile, time: PredictedTime) -> float | None:
    reports = [launch.instructions for launch in profile.launches]
    executed = sum(row.warps for report in reports for row in report.counts if row.kind != MOVE)
    chains = sum(report.dependent_cycles for report in reports)
    return max(LEAST_CYCLES_PER_INSTRUCTION, chains / executed) if executed else None


_FIGURES: dict[Cause, Callable[[Profile, PredictedTime], float | None]] = {
    causes.ARITHMETIC: _flops,
    causes.FP64: _lanes(FP64),
    causes.SPECIAL: _lanes(SPECIAL),
    causes.INTEGER: _warps(INTEGER),
    causes.CONVERSION: _lanes(CONVERSION),
    causes.IDLE_LANES: _idle_percent,
    causes.MEMORY: lambda profile, time: (
        sum(row.warps for row in _rows(profile, (MEMORY, SHARED)) if cause_of(row) is causes.MEMORY) / MEGA
    ),
    causes.SHARED: lambda profile, time: (
        sum(row.ideal_wavefronts for launch in profile.launches for row in launch.shared) / MEGA
    ),
    causes.CONFLICTS: lambda profile, time: (
        sum(row.wavefronts - row.ideal_wavefronts for launch in profile.launches for row in launch.shared) / MEGA
    ),
    causes.COALESCING: _sectors_over_minimum,
    causes.BYTES: _sector_mebibytes,
    causes.LOCAL_MEMORY: lambda profile, time: sum(launch.local_bytes for launch in profile.launches) / MIB,
    causes.SPILLS: _spilled_bytes,
    causes.LATENCY: lambda profile, time: sum(kernel.stalls.waits for kernel in time.kernels),
    causes.FEW_WARPS: lambda profile, time: float(warps_there(launch_of_fewest_warps(profile, time.gpu), time.gpu)),
    causes.DEPENDENT: _cycles_per_instruction,
    causes.SHUFFLES: _warps(SHUFFLE),
    causes.CONTROL: _warps(CONTROL),
    causes.BARRIERS: _warps(BARRIER),
    causes.TAIL: lambda profile, time: 100 * (1 - 1 / (1 + time.weighted("tail"))),
    causes.IMBALANCE: lambda profile, time: 1 + time.weighted("tail") + time.weighted("imbalance"),
    causes.LAUNCHES: lambda profile, time: float(time.launches),
    causes.TILE: lambda profile, time: barriers_met(profile),
    causes.STEPS: lambda profile, time: barriers_met(profile),
    causes.REREAD: _sector_mebibytes,
    causes.NO_TENSOR_CORES: lambda profile, time: _tensor_flops(profile) / MEGA,
}
"""The function for every cause; a test checks that none is missing. `move` instructions are in none."""
