"""Formats tables: aligned text for people, markdown for documents, csv and json for programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tabulate

from harness.support.memory_units import MIB
from harness.support.printable import printable

if TYPE_CHECKING:
    from harness.execution.protocol import Device
    from harness.model.problem import BaseProblem

FORMATS = ("table", "markdown", "csv", "json")
UNKNOWN = "-"

# Saves four blanks per column, so that the table fits into 100 characters.
tabulate.MIN_PADDING = 0


class Wrapped(str):
    """A cell of several lines. Line breaks in other cells become blanks, so that no text makes a row of its own."""


class Styled(str):
    """A cell with a terminal's escape sequences, which are not escaped."""


def table(
    headers: Sequence[str], cells: Sequence[Sequence[str]], numbers: Sequence[bool], markdown: bool = False
) -> str:
    """Rows of `cells` under `headers`, without a final line break. Columns marked in `numbers` are right-aligned."""
    align = ["right" if number else "left" for number in numbers]
    headers = [printable(header) for header in headers]
    cells = [[_cell(cell) for cell in line] for line in cells]
    if markdown:
        # A line break or a bar would end the cell.
        headers = [header.replace("\n", " ") for header in headers]
        cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in cells]
    text: str = tabulate.tabulate(
        cells,
        headers,
        tablefmt="pipe" if markdown else "simple",
        colalign=align if cells else None,
        disable_numparse=True,
    )
    return text


def _cell(text: str) -> str:
    if isinstance(text, Styled):
        return text
    shown = printable(text)
    return shown if isinstance(text, Wrapped) else shown.replace("\n", " ")


def csv_text(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    """A line of names, then a line per row; keys that a row lacks are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def json_text(value: Any) -> str:
    """One object. Floats that are not finite have to be None already, since JSON has neither NaN nor infinity."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """`value`, or None if it is a float that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def smallest_of(sizes: Iterable[int]) -> int:
    """The smallest of these byte counts that is not 0, for `mib`."""
    return min((size for size in sizes if size > 0), default=MIB)


def mib(value: int | float | None, smallest: float) -> str:
    """Bytes as MiB, with enough decimals to distinguish values as small as `smallest` bytes."""
    # Two decimals distinguish megabytes; a problem of a few kilobytes needs more.
    decimals = 2 if smallest >= 0.05 * MIB else 4
    return UNKNOWN if value is None else f"{value / MIB:,.{decimals}f}"


def three_digits(value: float) -> str:
    """Three significant digits; all digits before the decimal point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def device_line(device: Device) -> str:
    """Display name of the device."""
    return f"{device.name} ({device.arch})" if device.is_gpu else device.name


def notes_on_devices(problem: BaseProblem, device: Device) -> list[str]:
    """What a time on a GPU means for a problem that several devices compute; nothing for others."""
    if not device.is_gpu or problem.devices == 1:
        return []
    if problem.devices > device.count:
        gpus = "one GPU" if device.count == 1 else f"{device.count} GPUs"
        return [
            f"{problem.devices} devices share {gpus}: answers are checked, but times are not those of as many GPUs."
        ]
    return [f"{problem.devices} devices on as many GPUs: a time is from a common start to the end of the last one."]
