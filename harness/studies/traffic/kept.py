"""Converts traffic accounts and sweeps to rows of the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.execution.judging.verdict import FAIL, PASS
from harness.execution.planning.tiles import with_tile
from harness.execution.protocol import Device
from harness.execution.results.kept_row import KeptRow
from harness.execution.results.rows import made_of, what_was_run, where_it_ran, who_ran
from harness.execution.traffic.traffic_account import Level, TrafficAccount
from harness.model.tile_sizes import tile_text
from harness.model.variant import Variant
from harness.options.sweep import Sweep
from harness.studies.traffic.sweep_point import SweepPoint

WRONG_CLAIM = "claimed and counted bytes differ"
_COUNTED = {"sectors": "", "L2": "l2_", "DRAM": "dram_"}
"""Prefixes of the names of a level's two columns."""
_ON_THE_GPU = {"sectors": "gpu_", "L2": "gpu_l2_", "DRAM": "gpu_dram_"}


def account_rows(account: TrafficAccount, variant: Variant, asked_tile: str | None) -> list[KeptRow]:
    """The row of an account."""
    totals = {level.name: level.total_bytes for level in account.levels}
    made = made_of(variant, account.problem, account.device.arch)
    return [
        KeptRow(
            **what_was_run("traffic", account.problem, account.regime, account.seed),
            **where_it_ran(account.device),
            **who_ran(variant),
            **_by_level(account.levels, _COUNTED),
            **_by_level(() if account.hardware is None else account.hardware.levels, _ON_THE_GPU),
            tile=made.tile,
            asked_tile=asked_tile,
            kernel_digest=made.kernel_digest,
            local_bytes=account.local.sector_bytes,
            verdict=account.verdict or PASS,
            reason=account.reason,
            error_over_budget=account.error_over_budget,
            claimed_bytes=totals.get("claimed"),
            requested_bytes=totals["requested"],
            launches=len(account.launches),
        )
    ]


def _by_level(levels: Sequence[Level], columns: Mapping[str, str]) -> dict[str, Any]:
    named = {columns[level.name]: level for level in levels if level.name in columns}
    reads = {f"{begin}read_bytes": level.read_bytes for begin, level in named.items()}
    return reads | {f"{begin}write_bytes": level.write_bytes for begin, level in named.items()}


def sweep_rows(
    points: Iterable[SweepPoint], variants: Iterable[Variant], sweep: Sweep, device: Device, regime: str, seed: int
) -> list[KeptRow]:
    """A row per point of these variants."""
    named = {variant.name: variant for variant in variants}
    rows = []
    for point in points:
        if point.variant in named:
            asked = sweep.tile_at(point.value)
            given = what_was_run("traffic", point.problem, regime, seed) | where_it_ran(device)
            given |= {"asked_tile": tile_text(asked) if asked else None}
            rows.append(_point_row(point, named[point.variant], given))
    return rows


def _point_row(point: SweepPoint, variant: Variant, given: Mapping[str, Any]) -> KeptRow:
    row = KeptRow(
        **given,
        **who_ran(variant),
        tile=None if point.tile is None else tile_text(point.tile),
        verdict=point.verdict or (FAIL if point.is_wrong else PASS),
        reason=point.answer_failure or (WRONG_CLAIM if point.claim_holds is False else point.reason),
    )
    if point.source != "counted":
        # Its kernels did not run, so there is a claim at most.
        return replace(row, claimed_bytes=point.total_bytes)
    tiled = variant if point.tile is None else with_tile(variant, point.tile)
    return replace(
        row,
        kernel_digest=made_of(tiled, point.problem, given["arch"]).kernel_digest,
        requested_bytes=point.requested_bytes,
        read_bytes=point.read_bytes,
        write_bytes=point.write_bytes,
        local_bytes=point.local_bytes,
        claimed_bytes=(point.read_bytes or 0) + (point.write_bytes or 0) if point.claim_holds else None,
    )
