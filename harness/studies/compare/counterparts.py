"""What variants are set beside in a comparison: nothing, themselves as they were in git, or as they were kept."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from harness.execution.outcome import Comparison
from harness.execution.results.kept_row import KeptRow
from harness.execution.results.store import open_store
from harness.model.discovery import Discovery
from harness.model.variant import Variant
from harness.studies.compare.against import Kept
from harness.studies.compare.against_report import with_changes
from harness.studies.compare.beside import Setting, beside_kept, beside_revision, kept_candidates
from harness.studies.compare.past_variants import PastVariants, variants_at
from harness.text.report import Report


class Counterparts:
    """Nothing: a plain comparison."""

    def twins(self) -> Mapping[str, Variant]:
        """A variant's name -> what is to be run beside it."""
        return {}

    def look_up(self, setting: Setting, names: Sequence[str]) -> None:
        """Before anything runs: find what these variants are set beside. Raises `UsageError` where there is nothing."""

    def told(
        self, report: Report, comparison: Comparison, variants: Sequence[Variant], twins: Mapping[str, Variant]
    ) -> Report:
        """The report with what changed; `variants` and `twins` as they were run."""
        return report


class InGit(Counterparts):
    """Themselves as they were at a revision, run in the same comparison."""

    def __init__(self, past: PastVariants) -> None:
        self._past = past

    def twins(self) -> Mapping[str, Variant]:
        """See `Counterparts`."""
        return self._past.variants

    def told(
        self, report: Report, comparison: Comparison, variants: Sequence[Variant], twins: Mapping[str, Variant]
    ) -> Report:
        """See `Counterparts`."""
        found = beside_revision(comparison, variants, twins, self._past)
        return with_changes(report, found, self._past.revision)


class InStore(Counterparts):
    """Rows that were kept."""

    def __init__(self, asked: Kept) -> None:
        self._asked = asked
        self._candidates: Mapping[str, Sequence[KeptRow]] = {}

    def look_up(self, setting: Setting, names: Sequence[str]) -> None:
        """See `Counterparts`."""
        with open_store(create=False) as store:
            self._candidates = kept_candidates(store, self._asked, setting, names)

    def told(
        self, report: Report, comparison: Comparison, variants: Sequence[Variant], twins: Mapping[str, Variant]
    ) -> Report:
        """See `Counterparts`."""
        found = beside_kept(comparison, variants, self._asked, self._candidates)
        return with_changes(report, found, "what was kept")


def counterparts(
    against: str | Kept | None, variants: Sequence[Variant], found: Discovery, until_compared: contextlib.ExitStack
) -> Counterparts:
    """What --against names; what it takes of disk is given back with `until_compared`. Raises `UsageError`."""
    if isinstance(against, Kept):
        return InStore(against)
    if against is not None:
        return InGit(until_compared.enter_context(variants_at(against, variants, found)))
    return Counterparts()
