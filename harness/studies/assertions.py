"""Assertions on traffic and races, for any test suite: each runs a variant once on the emulator, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.studies.calls import compare
from harness.support.errors import UsageError
from harness.text.findings import findings_in_words

if TYPE_CHECKING:
    from harness.execution.outcome import Row
    from harness.model.problem import BaseProblem
    from harness.model.variant import Variant
    from harness.options.call import Plugins

Bound = int | Callable[[int], bool]
"""An exact number of bytes, or a predicate on the number, such as `at_most`."""


@dataclass(frozen=True)
class at_most:
    """An upper bound for `assert_traffic`."""

    most_bytes: int

    def __call__(self, counted_bytes: int) -> bool:
        """Whether `counted_bytes` is within the bound."""
        return counted_bytes <= self.most_bytes

    def __str__(self) -> str:
        return f"at most {self.most_bytes:,}"


def assert_traffic(
    variant: str | Variant,
    problem: BaseProblem | None = None,
    *,
    read: Bound | None = None,
    write: Bound | None = None,
    total: Bound | None = None,
    plugin: Plugins = (),
    **options: Any,
) -> None:
    """Assert the bytes that a variant moves, as counted at the `sectors` level: exactly, or `at_most(...)`.

    `variant` is a `Variant` or a name, with `plugin` being the file that registers it. The problem is given whole or by
    its fields. Other keywords are options of `compare`. Raises `AssertionError` if the bytes differ or the answer is
    wrong, and `UsageError` if the call is wrong or gives no bytes.
    """
    __tracebackhide__ = True
    bounds = {"read": read, "write": write, "total": total}
    if all(bound is None for bound in bounds.values()):
        raise UsageError("assert_traffic() needs a number of bytes: read=, write= or total=")
    row = _row(variant, problem, plugin, options)
    _require_pass(row, options)
    for (name, bound), counted in zip(bounds.items(), (row.read_bytes, row.write_bytes, row.total_bytes)):
        if bound is None:
            continue
        assert counted is not None
        if not (bound(counted) if callable(bound) else counted == bound):
            wanted = f"{bound:,}" if isinstance(bound, int) else str(bound)
            verb = {"read": "reads", "write": "writes", "total": "moves"}[name]
            raise AssertionError(f"{row.variant} {verb} {counted:,} bytes at the sectors level, not {wanted}")


def assert_no_races(
    variant: str | Variant, problem: BaseProblem | None = None, *, plugin: Plugins = (), **options: Any
) -> None:
    """Assert that the sanitizer has no findings: no races, stray accesses, unwritten memory or stores into inputs.

    Arguments are those of `assert_traffic`. Raises `AssertionError` with the findings, their kernels and lines,
    followed by the wrong values if there are any.
    """
    __tracebackhide__ = True
    options = {**options, "sanitize": True}
    row = _row(variant, problem, plugin, options)
    if row.findings:
        texts = [*findings_in_words(row.findings, None)]
        if not any(row.reason and row.reason.endswith(finding.message) for finding in row.findings):
            texts.append(row.reason or "")
        raise AssertionError(f"{row.variant}: {row.verdict}: " + "\n".join(filter(None, texts)))
    _require_pass(row, options)
    assert row.findings == (), f"{row.variant}: not checked: {row.note}"


def _row(variant: str | Variant, problem: BaseProblem | None, plugin: Plugins, options: dict[str, Any]) -> Row:
    """The variant's row, whatever its verdict."""
    __tracebackhide__ = True
    rows = compare(problem, variant, plugin=plugin, **{"device": "emulator", **options}).result.rows
    if len(rows) != 1:
        raise UsageError(f"{variant!r} names {len(rows)} variants; name one")
    return rows[0]


def _require_pass(row: Row, options: dict[str, Any]) -> None:
    """Raise `AssertionError` if the variant does not pass."""
    __tracebackhide__ = True
    if row.verdict not in ("pass", "undecided") or (row.verdict == "undecided" and not options.get("allow_undecided")):
        raise AssertionError(f"{row.variant}: {row.verdict}: {row.reason}")
