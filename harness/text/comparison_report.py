"""Renders a comparison: a table for people, markdown for documents, csv and json for programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import asdict, fields
from typing import Any

from harness.execution.judging.accuracy import SANITIZE_HINT
from harness.execution.judging.verdict import FAIL, PASS, UNSUPPORTED
from harness.execution.outcome import Comparison, OutputErrors, Row
from harness.model.finding import findings_by_cause
from harness.model.problem import IN_OUT, OPTIONAL_OUTPUT, OUTPUT, BaseProblem
from harness.text.findings import findings_in_words
from harness.text.report import Column, Report, Table
from harness.text.tables import UNKNOWN, device_line, finite, mib, notes_on_devices


def render_comparison(comparison: Comparison, format: str) -> str:
    """Render the comparison in one of `FORMATS`, ending in a line break. csv and json have bytes, the others MiB."""
    return comparison_report(comparison).render(format)


def comparison_report(
    comparison: Comparison, next_command: Callable[[str], str] | None = None, user_variants: Collection[str] = ()
) -> Report:
    """The report of a comparison. `next_command` returns the command that fuzzes a variant.

    That is the advice after a failure, and if one of `user_variants`, those of plugins, passed.
    """
    return Report(
        paragraphs=lambda: [comparison_headline(comparison), _table(comparison)],
        notes=lambda: [*_footnotes(comparison), *_next_steps(comparison, next_command, user_variants)],
        records=lambda: (
            [
                _row_object(row, comparison.problem) | {"findings": None if row.findings is None else len(row.findings)}
                for row in comparison.rows
            ],
            _row_keys(comparison.problem),
        ),
        document=lambda: _comparison_object(comparison),
        wraps_notes=False,
    )


def _table(comparison: Comparison) -> Table:
    """A table with a line per variant that supports the problem, or per variant if none does; notes list the others."""
    rows = [row for row in comparison.rows if row.verdict != UNSUPPORTED] or comparison.rows
    expendable = ("launches", "allocated\nMiB", "error /\nexpected", "written\nMiB", "read\nMiB")
    return Table.of(comparison_columns(comparison), rows, expendable)


def comparison_columns(comparison: Comparison) -> list[Column[Row]]:
    """The columns that are shown, in order."""

    def size(value: int | None) -> str:
        return mib(value, comparison.problem.compulsory_bytes)

    columns: list[Column[Row]] = [
        Column("rank", lambda r: UNKNOWN if r.rank is None else str(r.rank)),
        Column("variant", lambda r: r.variant, number=False),
        Column("verdict", lambda r: r.verdict, number=False),
        Column("error /\nbudget", lambda r: _ratio(r.worst_over_budget)),
        Column("error /\nexpected", lambda r: _ratio(r.worst_over_expected)),
        Column("read\nMiB", lambda r: size(r.read_bytes)),
        Column("written\nMiB", lambda r: size(r.write_bytes)),
        *([Column("local\nMiB", lambda r: _size(r.local_bytes, size))] if _uses_local(comparison) else ()),
        Column("total\nMiB", lambda r: size(r.total_bytes)),
        Column(
            "total /\ncompulsory", lambda r: UNKNOWN if r.times_compulsory is None else f"{r.times_compulsory:,.2f}"
        ),
        Column("claim", _claim, number=False),
        Column("allocated\nMiB", lambda r: size(r.allocated_bytes)),
        Column("launches", lambda r: UNKNOWN if r.launches is None else str(r.launches)),
    ]
    if comparison.problem.sharing is not None:
        columns.append(Column("links\nMiB", lambda r: _size(r.link_bytes, size)))
        columns.append(Column("device\nMiB", lambda r: size(r.device_bytes)))
    if comparison.tile is not None:
        columns.insert(2, Column("tile", lambda r: r.tile or UNKNOWN, number=False))
    if comparison.sanitized_by is not None:
        columns.append(
            Column("findings", lambda r: UNKNOWN if r.findings is None else str(len(findings_by_cause(r.findings))))
        )
    if comparison.device.is_gpu:
        columns.append(Column("time\nms", lambda r: UNKNOWN if r.time_ms is None else f"{r.time_ms:,.4f}"))
    return columns


def _uses_local(comparison: Comparison) -> bool:
    return any(row.local_bytes for row in comparison.rows)


def _size(value: int | None, size: Callable[[int | None], str]) -> str:
    return "0" if value == 0 else size(value)


def _ratio(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if math.isnan(value):
        return "NaN"
    return f"{value:.3f}" if value < 100 else f"{value:.1e}"


def _claim(row: Row) -> str:
    if row.claim_holds is None:
        return UNKNOWN
    assert row.claimed_bytes is not None and row.read_bytes is not None and row.write_bytes is not None
    counted = row.read_bytes + row.write_bytes
    if row.claim_holds:
        return "exact" if row.claimed_bytes == counted else f"within, {100 * (counted / row.claimed_bytes - 1):+.0f} %"
    if not counted or row.claimed_bytes == counted:
        return "wrong"  # reads and writes differ, but not their sum
    return f"wrong, {100 * (row.claimed_bytes - counted) / counted:+.2f} %"


def comparison_headline(comparison: Comparison) -> str:
    """The problem and the distribution of its inputs, in one line."""
    drawn = "the user's arrays"
    if comparison.regime is not None:
        drawn = f"inputs {comparison.regime}, seed {comparison.seed}"
    if comparison.tile is not None:
        drawn += f"; tile {comparison.tile}"
    return f"{comparison.problem.headline}; {drawn}"


def _ratios(comparison: Comparison) -> str:
    *first, last = [tensor.name for tensor in comparison.problem.with_role(OUTPUT, OPTIONAL_OUTPUT, IN_OUT)]
    names = f"{', '.join(first)} and {last}" if first else last
    explained = " (the log-sum-exp of each row)" if last == "lse" else ""
    return (
        "error / budget: the error divided by its budget, the largest error that a correct kernel can make on these "
        "inputs.\nerror / expected: the error divided by that expected from random rounding; suspicious above 1.\n"
        f"Both are maxima over all elements of {names}{explained}."
    )


def general_notes(comparison: Comparison) -> list[str]:
    """Notes on the device and on the meaning of the ranking."""
    device = f"Device: {device_line(comparison.device)}. {_ranking(comparison)}"
    notes = [device, _units(comparison), _ratios(comparison)]
    if _uses_local(comparison):
        notes.append(
            "local: the threads' local memory, which is part of the total and of no claim: arrays that are indexed\n"
            "by a variable, or too large for registers. Unrolled loops or fewer elements per thread avoid it."
        )
    if comparison.problem.sharing is not None:
        notes.append(
            "links: bytes that copies move between devices, which are part of no other column; device: the most that "
            "one\ndevice holds."
        )
    notes += notes_on_devices(comparison.problem, comparison.device)
    if comparison.sanitized_by is not None:
        what = "races, unwritten memory, stores into inputs, undefined shuffles, faults"
        notes.append(f"findings: {what}; by {comparison.sanitized_by}.")
    return notes


def _footnotes(comparison: Comparison) -> list[str]:
    """Notes on all rows, then on single rows."""
    notes = general_notes(comparison)
    alike = _alike(comparison)
    notes += [f"{', '.join(names)}: {v}: {reason}" for (v, reason), names in alike.items() if v == UNSUPPORTED]
    for row in comparison.rows:
        names = alike.get((row.verdict, row.reason or ""), [])
        texts = [*findings_in_words(row.findings or (), None if _fails_by_findings(row) else row.reason)]
        if _fails_by_findings(row):
            notes.append(f"{row.variant}: {row.verdict}: {texts.pop(0)}")
        elif row.verdict != UNSUPPORTED and row.variant in names[:1]:
            notes.append(f"{', '.join(names)}: {row.verdict}: {_reason(row, comparison)}")
        notes += [f"{row.variant}: {text}" for text in texts]
        if row.error_over_strictest is not None:
            notes.append(f"{row.variant}: {inferred_numerics_note(row)}")
        if row.note is not None:
            notes.append(f"{row.variant}: {row.note}")
    return notes


def _fails_by_findings(row: Row) -> bool:
    """Whether the row's reason is the first finding of the sanitizer: nothing else is wrong."""
    if not row.findings:
        return False
    return row.reason == f"{row.findings[0].kind}: {row.findings[0].message}"


def _reason(row: Row, comparison: Comparison) -> str:
    """Why the row does not pass, without advice to run the sanitizer if it ran."""
    reason = row.reason or ""
    return _indented(reason if comparison.sanitized_by is None else reason.replace(SANITIZE_HINT, ""))


def _next_steps(
    comparison: Comparison, next_command: Callable[[str], str] | None, user_variants: Collection[str]
) -> list[str]:
    """The command that finds the cause of a failure, or other problems that the user's variant may get wrong."""
    if next_command is None:
        return []
    sanitize = "" if comparison.device.is_gpu else " --sanitize"
    failing = [row for row in comparison.rows if row.verdict == FAIL]
    if failing:
        command, races = next_command(failing[0].variant), "; 'compare --sanitize' searches for races"
        if comparison.sanitized_by is not None:
            command, races = f"{command}{sanitize if _fails_by_findings(failing[0]) else ''}", ""
        return [f"Next: {command}\nshrinks the failure to a small problem{races}."]
    passing = [row.variant for row in comparison.rows if row.verdict == PASS and row.variant in user_variants]
    return [f"Passed on this problem only. Next: {next_command(passing[0])}{sanitize}"] if passing else []


def inferred_numerics_note(row: Row) -> str:
    """The note on a variant that declares no numerics: its error under the strictest that its code permits."""
    over = row.error_over_strictest
    if over is not None and over <= 1:
        return (
            "optional: for a tighter check, declare where the kernel rounds (`numerics`, docs/numerics.md). If it "
            f"rounds as little as its code suggests, error / expected is {_ratio(over)}"
        )
    exact = over is not None and math.isinf(over)
    what = "answers that would be exact are not" if exact else f"error / expected would be {_ratio(over)}"
    return (
        "it does not declare `numerics`, where it rounds, which may hide a mistake (docs/numerics.md): with the fewest "
        f"roundings that its code allows, {what}. If it rounds more often, declare where; if not: "
        f"{row.strictest_numerics}"
    )


def _alike(comparison: Comparison) -> dict[tuple[str, str], list[str]]:
    """Variants by verdict and reason, so that each reason is printed once."""
    names: dict[tuple[str, str], list[str]] = {}
    for row in comparison.rows:
        if row.reason is not None:
            names.setdefault((row.verdict, row.reason), []).append(row.variant)
    return names


def _ranking(comparison: Comparison) -> str:
    if comparison.device.is_gpu:
        return "Ranked by the time of all launches together (CUDA events, median), shortest first."
    return "Ranked by total bytes moved; the emulator does not measure time."


def _units(comparison: Comparison) -> str:
    if comparison.counted_on is None:
        return "Bytes were not counted (to count them on the emulator, use '--count always')."
    where = "" if comparison.counted_on == comparison.device else f" Counted on: {device_line(comparison.counted_on)}."
    return f"MiB: 2^20 bytes, counted in the 32-byte sectors that each warp's requests touch, before any cache.{where}"


def _indented(text: str) -> str:
    """Indent a compiler's log, keeping its lines."""
    return text.replace("\n", "\n    ")


def _comparison_object(comparison: Comparison) -> dict[str, Any]:
    return {
        "problem": comparison.problem.to_fields(),
        "regime": comparison.regime,
        "seed": comparison.seed,
        "tile": comparison.tile,
        "device": asdict(comparison.device),
        "counted_on": None if comparison.counted_on is None else asdict(comparison.counted_on),
        "sanitized_by": comparison.sanitized_by,
        "rows": [_row_object(row, comparison.problem) | {"findings": _finding_objects(row)} for row in comparison.rows],
    }


def _finding_objects(row: Row) -> list[dict[str, Any]] | None:
    return None if row.findings is None else [asdict(finding) for finding in row.findings]


def _row_keys(problem: BaseProblem) -> list[str]:
    # The fixed order of keys: identity, then measurements; errors of optional outputs follow those of the main one.
    first = ["rank", "variant", "algorithm", "backend", "verdict", "reason"]
    rest = [f.name for f in fields(Row) if f.name not in (*first, "compulsory_bytes", "optional_errors")]
    at = rest.index("error_over_expected") + 1
    rest[at:at] = [f"{tensor.name}_{error}" for tensor in problem.with_role(OPTIONAL_OUTPUT) for error in ERRORS]
    return [*first, "compulsory_bytes", *rest]


ERRORS = tuple(f.name for f in fields(OutputErrors))


def _row_object(row: Row, problem: BaseProblem) -> dict[str, Any]:
    # JSON has neither NaN nor infinity; the verdict and its reason say what they were.
    own = {f.name: getattr(row, f.name) for f in fields(row)}
    own |= {f"{name}_{error}": getattr(of, error) for name, of in row.optional_errors.items() for error in ERRORS}
    return {key: finite(own.get(key)) for key in _row_keys(problem)}
