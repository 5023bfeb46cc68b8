"""The option --against: a baseline for each variant, which is its code at a git revision or a stored result."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from datetime import datetime

from harness.options.command import argument_type
from harness.support.numbers import shown

KEPT = "kept"
"""The value of --against for stored results; any other value is a revision."""
_ROW = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Kept:
    """The stored row to use as each variant's baseline."""

    id: int | None = None
    """This row, of one variant; None to select by date."""
    until: str | None = None
    """The newest row up to this time; None for the newest row with other kernels."""


def parse_against(text: str) -> str | Kept:
    """Parse a revision, or a selection of stored rows. Raises `ValueError`."""
    word, colon, which = text.partition(":")
    if word != KEPT or (not colon and which):
        return text
    if not colon:
        return Kept()
    if _ROW.fullmatch(which):
        return Kept(id=int(which))
    try:
        datetime.fromisoformat(which.removesuffix("Z"))
    except ValueError:
        raise ValueError(f"{shown(text)} is not kept, kept:ROW or kept:DATE, such as kept:2026-03-01") from None
    return Kept(until=which.removesuffix("Z") + ("T23:59:59.999Z" if len(which) == 10 else ".999Z"))


def add_against(parser: argparse.ArgumentParser) -> None:
    """Add the option --against."""
    parser.add_argument(
        "--against",
        type=argument_type(parse_against),
        metavar="REVISION|kept[:ROW|:DATE]",
        help="compare each variant with its version at this git revision, or with a stored result: kept, the newest "
        "that has other kernels; kept:ROW, that row; kept:DATE, the newest up to that date. Changes beyond noise are "
        "reported",
    )
