"""Compares each variant with a baseline, which is its earlier code in git or an earlier result in the store."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.execution.judging.verdict import UNSUPPORTED
from harness.execution.outcome import Comparison, Row
from harness.execution.results.change import Figures, changed, time_interval
from harness.execution.results.kept_row import KeptRow
from harness.execution.results.rows import RAN, made_of
from harness.execution.results.store import Store
from harness.execution.run_settings import RunSettings
from harness.model.operation import operation_named
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.studies.compare.against import KEPT, Kept
from harness.studies.compare.past_variants import PastVariants
from harness.support.errors import UsageError


@dataclass(frozen=True)
class BaselineComparison:
    """One variant's figures and those of its baseline."""

    variant: str
    then: str
    """Name of the baseline: a commit, or a row's number and date."""
    before: Figures | None
    """Figures of the baseline; None if there is none, for the reason in `absent`."""
    after: Figures
    absent: str | None = None

    @property
    def never_ran(self) -> bool:
        """Whether the variant does not support the problem, or its baseline did not."""
        return all(figures is not None and figures.verdict == UNSUPPORTED for figures in (self.before, self.after))

    @property
    def changed(self) -> tuple[str, ...]:
        """The fields of `Figures` that differ beyond noise."""
        return () if self.before is None else changed(self.before, self.after)


def compare_with_revision(
    comparison: Comparison, variants: Iterable[Variant], twins: Mapping[str, Variant], past: PastVariants
) -> list[BaselineComparison]:
    """Compare each variant with its earlier version in the same comparison.

    `twins` are the versions in `past`, as run.
    """
    rows = {row.variant: row for row in comparison.rows}
    found = []
    for variant in variants:
        after = _figures(rows[variant.name], variant, comparison)
        if (twin := twins.get(variant.name)) is None:
            found.append(BaselineComparison(variant.name, past.revision, None, after, past.absent[variant.name]))
        else:
            commit = past.commits[variant.name]
            before = _figures(rows[twin.name], twin, comparison)
            found.append(BaselineComparison(variant.name, f"{commit.short}, {commit.date}", before, after))
    return found


@dataclass(frozen=True)
class Setting:
    """Conditions for a stored row to be comparable with a comparison."""

    problem: BaseProblem
    settings: RunSettings
    asked_tile: str | None
    device: str

    def is_of(self, row: KeptRow) -> bool:
        """Whether the row has the same problem, inputs, device and requested tile."""
        inputs = self.settings.regime, self.settings.seed
        here = ("compare", self.problem.operation, *inputs, self.asked_tile, self.device)
        there = (row.study, row.operation, row.regime, row.seed, row.asked_tile, row.device)
        return here == there and _problem_of(row.operation, row.problem) == self.problem


def kept_candidates(store: Store, wanted: Kept, setting: Setting, names: Sequence[str]) -> dict[str, list[KeptRow]]:
    """Stored rows that can be a baseline for each variant, newest first. Call this before anything runs.

    Raises `UsageError` if there is no such row, or none for any of the variants.
    """
    if wanted.id is not None:
        row = _row_numbered(store, wanted.id, setting, names)
        return {name: [row] if name == row.variant else [] for name in names}
    until = wanted.until or "9999"
    found = {}
    for name in names:
        rows = store.rows("variant = ? AND study = 'compare' AND kept_at <= ?", (name, until))
        found[name] = [row for row in reversed(rows) if setting.is_of(row)]
    if not any(found.values()):
        who = names[0] if len(names) == 1 else f"any of the {len(names)} variants"
        raise UsageError(
            f"--against: no result of {who} is stored for this problem, these inputs and this device"
            f"{'' if wanted.until is None else f' up to {wanted.until[:10]}'}; --keep stores the new one"
        )
    return found


def _row_numbered(store: Store, id: int, setting: Setting, names: Sequence[str]) -> KeptRow:
    rows = store.rows("id = ?", (id,))
    if not rows:
        raise UsageError(f"--against kept:{id}: there is no such row; 'history --format csv' shows the numbers of rows")
    (row,) = rows
    if row.variant not in names:
        raise UsageError(f"--against kept:{id}: that row is of {row.variant}; select it with --variants")
    if not setting.is_of(row):
        what = f"{row.study}, {row.headline or row.operation}, inputs {row.regime}, seed {row.seed}, {row.device}"
        raise UsageError(f"--against kept:{id}: that row is of another problem or device: {what}")
    return row


def compare_with_kept(
    comparison: Comparison, variants: Iterable[Variant], wanted: Kept, candidates: Mapping[str, Sequence[KeptRow]]
) -> list[BaselineComparison]:
    """Compare each variant with its newest candidate; if neither row nor date is requested, with other kernels."""
    rows = {row.variant: row for row in comparison.rows}
    found = []
    for variant in variants:
        after = _figures(rows[variant.name], variant, comparison)
        kept = next((row for row in candidates[variant.name] if _is_meant(row, wanted, after)), None)
        if kept is None:
            absent = "has no stored row for this problem" + (" with other kernels" if candidates[variant.name] else "")
            found.append(BaselineComparison(variant.name, KEPT, None, after, absent))
        else:
            then = f"row {kept.id}, {str(kept.kept_at)[:10]}"
            found.append(
                BaselineComparison(
                    variant.name, then, _figures_of(kept, kept.kernel_digest, kept.error_over_budget), after
                )
            )
    return found


def _is_meant(row: KeptRow, wanted: Kept, now: Figures) -> bool:
    if wanted != Kept():
        return True
    return row.kernel_digest is not None and row.kernel_digest != now.kernel_digest


def _figures(row: Row, variant: Variant, comparison: Comparison) -> Figures:
    ran = row.verdict in RAN
    digest = made_of(variant, comparison.problem, comparison.device.arch).kernel_digest if ran else None
    return _figures_of(row, digest, row.worst_over_budget)


def _figures_of(row: Row | KeptRow, kernel_digest: str | None, error_over_budget: float | None) -> Figures:
    return Figures(
        kernel_digest=kernel_digest,
        verdict=row.verdict,
        read_bytes=row.read_bytes,
        write_bytes=row.write_bytes,
        local_bytes=row.local_bytes,
        claimed_bytes=row.claimed_bytes,
        error_over_budget=error_over_budget,
        time=time_interval(row.time_low_ms, row.time_ms, row.time_high_ms),
    )


@functools.cache
def _problem_of(operation: str, text: str | None) -> BaseProblem | None:
    """The problem of a row; fields that it lacks have their defaults. None if it is no longer valid."""
    try:
        problem: BaseProblem = operation_named(operation).problem.from_fields(json.loads(text or "null"))
    except (UsageError, TypeError, ValueError, AttributeError):
        return None
    return problem
