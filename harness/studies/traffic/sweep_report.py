"""Renders a sweep: a row per value and a column per variant for people, a row per point for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from harness.execution.judging.verdict import FAIL
from harness.execution.protocol import Device
from harness.model.tile_sizes import tile_text
from harness.options.sweep import Sweep, what_is_fixed
from harness.studies.traffic.sweep_point import SweepPoint
from harness.text.report import Report, Table, wrong_answer
from harness.text.tables import UNKNOWN, device_line, finite, mib, smallest_of

CLAIMED_MARK, WRONG_MARK = "*", "!"


def sweep_report(sweep: Sweep, points: Sequence[SweepPoint], device: Device) -> Report:
    """The report of a sweep."""
    return Report(
        paragraphs=lambda: [_headline(sweep, points), *_wrong_answers(points), _table(sweep, points)],
        notes=lambda: list(_footnotes(sweep, points, device)),
        records=lambda: ([_flat(sweep, p) for p in points], _csv_keys(sweep, _object(points[0]))),
        document=lambda: {
            "sweep": {"field": sweep.field, "values": list(sweep.values)},
            "device": asdict(device),
            "points": [_object(p) for p in points],
        },
    )


def _headline(sweep: Sweep, points: Sequence[SweepPoint]) -> str:
    fixed = what_is_fixed(sweep, [p.problem for p in points])
    return f"MiB read and written, at the sectors level, by {sweep.field}; {fixed}"


def _wrong_answers(points: Sequence[SweepPoint]) -> Iterable[str]:
    """A paragraph for each variant with a wrong answer, with the values and the failure at the first one."""
    first: dict[str, SweepPoint] = {}
    values: dict[str, list[str]] = {}
    for point in points:
        if point.answer_failure is not None:
            first.setdefault(point.variant, point)
            values.setdefault(point.variant, []).append(str(point.value))
    for variant, point in first.items():
        text = wrong_answer(f"{variant} at {', '.join(values[variant])}", FAIL, point.answer_failure)
        assert text is not None
        yield text


def _table(sweep: Sweep, points: Sequence[SweepPoint]) -> Table:
    variants = list(dict.fromkeys(point.variant for point in points))
    found = {(point.value, point.variant): point for point in points}
    smallest = smallest_of(point.total_bytes or 0 for point in points)
    cells = []
    for value in sweep.values:
        row = [found[value, variant] for variant in variants]
        compulsory = mib(row[0].problem.compulsory_bytes, smallest)
        cells.append([str(value), compulsory, *(_cell(point, smallest) for point in row)])
    headers = [sweep.field, "compulsory", *(variant.replace("-", "-\n") for variant in variants)]
    return Table(headers, cells, [sweep.is_numeric, *[True] * (len(headers) - 1)])


def _cell(point: SweepPoint, smallest: int) -> str:
    if point.total_bytes is None:
        return UNKNOWN
    mark = CLAIMED_MARK if point.source == "claimed" else WRONG_MARK if point.answer_failure is not None else ""
    return mib(point.total_bytes, smallest) + mark


def _footnotes(sweep: Sweep, points: Sequence[SweepPoint], device: Device) -> Iterable[str]:
    sectors = "the 32-byte sectors that each warp's requests touch, before any cache"
    if any(point.source == "counted" for point in points):
        yield f"MiB: 2^20 bytes, counted in {sectors}. Device: {device_line(device)}."
    else:
        yield f"MiB: 2^20 bytes, computed for {sectors}."
    if any(point.source == "claimed" for point in points):
        yield (
            f"{CLAIMED_MARK} taken from the variant's claim: bytes were not counted, and the result was not checked "
            "(to emulate all points, use '--count always')."
        )
    if sweep.of_tile and (others := other_sizes(sweep, points)):
        yield f"Tile sizes besides {sweep.field}: {others}."
    local = [f"{p.variant} at {p.value} ({mib(p.local_bytes, p.local_bytes)})" for p in points if p.local_bytes]
    if local:
        yield f"Local memory is part of the MiB of: {', '.join(local)}."
    if any(point.answer_failure is not None for point in points):
        yield f"{WRONG_MARK} wrong result: these are the bytes of a kernel that does not solve the problem."
    wrong = [point for point in points if point.claim_holds is False]
    if wrong:
        yield "Claim does not hold: " + ", ".join(f"{p.variant} at {p.value}" for p in wrong) + "."
    values_of: dict[tuple[str, str], list[str]] = {}
    for point in points:
        if point.reason is not None:
            values_of.setdefault((point.reason, point.variant), []).append(str(point.value))
    variants_of: dict[tuple[str, str], list[str]] = {}
    for (reason, variant), values in values_of.items():
        variants_of.setdefault((reason, ", ".join(values)), []).append(variant)
    for (reason, at), variants in variants_of.items():
        yield f"{UNKNOWN} {', '.join(variants)} at {at}: {reason}"


def other_sizes(sweep: Sweep, points: Sequence[SweepPoint]) -> str:
    """For a sweep over a tile size: the sizes that are not set by the sweep or the user, with their variants."""
    variants_of: dict[str, dict[str, None]] = {}
    for point in points:
        rest = {name: size for name, size in (point.tile or {}).items() if name not in (sweep.field, *sweep.tile)}
        if rest:
            variants_of.setdefault(tile_text(rest), {})[point.variant] = None
    return "; ".join(f"{rest} ({', '.join(variants)})" for rest, variants in variants_of.items())


_BYTES = ("read_bytes", "write_bytes", "local_bytes", "total_bytes", "requested_bytes", "compulsory_bytes")


def _object(point: SweepPoint) -> dict[str, Any]:
    first = ("variant", "algorithm", "backend", "value", "source")
    return {
        **{name: getattr(point, name) for name in first},
        "problem": point.problem.to_fields(),
        **{name: getattr(point, name) for name in _BYTES[:-1]},
        "compulsory_bytes": point.problem.compulsory_bytes,
        "flops": point.flops,
        "flops_per_byte": finite(point.intensity),
        "tile": None if point.tile is None else tile_text(point.tile),
        "claim_holds": point.claim_holds,
        "failed": point.failed,
        "verdict": point.verdict,
        "reason": point.answer_failure or point.reason,
    }


def _csv_keys(sweep: Sweep, found: dict[str, Any]) -> list[str]:
    problem = [name for name in found["problem"] if name != sweep.field]
    return [
        sweep.field, "variant", "algorithm", "backend", "source", *_BYTES, "flops", "flops_per_byte", "tile",
        "claim_holds", "verdict", "reason", *problem,
    ]  # fmt: skip


def _flat(sweep: Sweep, point: SweepPoint) -> dict[str, Any]:
    found = _object(point)
    values = {**found["problem"], **found, sweep.field: point.value}
    return {key: values[key] for key in _csv_keys(sweep, found)}
