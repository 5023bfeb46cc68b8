"""The baseline of a comparison: none, earlier versions from git, or stored rows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from harness.execution.outcome import Comparison
from harness.execution.results.kept_row import KeptRow
from harness.execution.results.store import open_store
from harness.model.discovery import Discovery
from harness.model.variant import Variant
from harness.studies.compare.against import Kept
from harness.studies.compare.baseline import Setting, compare_with_kept, compare_with_revision, kept_candidates
from harness.studies.compare.baseline_report import with_changes
from harness.studies.compare.past_variants import PastVariants, variants_at
from harness.text.report import Report


class Counterparts:
    """No baseline: a plain comparison."""

    def twins(self) -> Mapping[str, Variant]:
        """Variants to run in addition, by the name of the variant that they are the baseline of."""
        return {}

    def look_up(self, setting: Setting, names: Sequence[str]) -> None:
        """Find the baselines of these variants before anything runs. Raises `UsageError` if there are none."""

    def with_changes(
        self, report: Report, comparison: Comparison, variants: Sequence[Variant], twins: Mapping[str, Variant]
    ) -> Report:
        """The report, extended by the changes. `variants` and `twins` are as they were run."""
        return report


class InGit(Counterparts):
    """Earlier versions of the variants, run in the same comparison."""

    def __init__(self, past: PastVariants) -> None:
        self._past = past

    def twins(self) -> Mapping[str, Variant]:
        """The versions at the revision, by name of the current variant."""
        return self._past.variants

    def with_changes(
        self, report: Report, comparison: Comparison, variants: Sequence[Variant], twins: Mapping[str, Variant]
    ) -> Report:
        """The report, extended by the changes since the revision."""
        found = compare_with_revision(comparison, variants, twins, self._past)
        return with_changes(report, found, self._past.revision)


class InStore(Counterparts):
    """Stored rows."""

    def __init__(self, wanted: Kept) -> None:
        self._wanted = wanted
        self._candidates: Mapping[str, Sequence[KeptRow]] = {}

    def look_up(self, setting: Setting, names: Sequence[str]) -> None:
        """Read the candidates from the store. Raises `UsageError` if there are none."""
        with open_store(create=False) as store:
            self._candidates = kept_candidates(store, self._wanted, setting, names)

    def with_changes(
        self, report: Report, comparison: Comparison, variants: Sequence[Variant], twins: Mapping[str, Variant]
    ) -> Report:
        """The report, extended by the changes since the stored results."""
        found = compare_with_kept(comparison, variants, self._wanted, self._candidates)
        return with_changes(report, found, "the stored results")


def counterparts(
    against: str | Kept | None, variants: Sequence[Variant], found: Discovery, until_compared: contextlib.ExitStack
) -> Counterparts:
    """The baseline that --against names. `until_compared` releases its files. Raises `UsageError`."""
    if isinstance(against, Kept):
        return InStore(against)
    if against is not None:
        return InGit(until_compared.enter_context(variants_at(against, variants, found)))
    return Counterparts()
