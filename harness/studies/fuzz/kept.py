"""Converts campaigns to rows of the store."""

from __future__ import annotations

from collections.abc import Iterable

from harness.execution.protocol import Device
from harness.execution.results.kept_row import KeptRow
from harness.execution.results.rows import made_of, where_it_ran, who_ran
from harness.model.operation import operation_named
from harness.model.variant import Variant
from harness.studies.fuzz.result import CampaignResult


def campaign_rows(results: Iterable[CampaignResult], variants: Iterable[Variant], device: Device) -> list[KeptRow]:
    """A row per campaign of these variants.

    A campaign draws many problems, so a row has none. The digest is that of the operation's plainest problem, to
    identify the kernel that was fuzzed; None if the variant does not support that problem.
    """
    named = {variant.name: variant for variant in variants}
    rows = []
    for result in results:
        variant = named.get(result.variant)
        if variant is None:
            continue
        rows.append(
            KeptRow(
                study="fuzz",
                operation=variant.operation,
                **where_it_ran(device),
                **who_ran(variant),
                seed=result.seed,
                kernel_digest=made_of(variant, operation_named(variant.operation).problem(), device.arch).kernel_digest,
                verdict=result.verdict,
                reason=result.reason,
                error_over_budget=result.hardest_ratio,
                examples=result.examples,
                refused=result.refused,
                failing_case=None if result.failure is None else result.failure.case.to_json(),
            )
        )
    return rows
