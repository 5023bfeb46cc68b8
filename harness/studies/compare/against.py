"""--against: what each variant is set beside, itself at a revision or as it was kept."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from datetime import datetime

from harness.options.command import argument_type
from harness.support.numbers import shown

KEPT = "kept"
"""What --against says for the store; what else it says is a revision."""
_ROW = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Kept:
    """Which kept row each variant is set beside."""

    id: int | None = None
    """This one, of one variant."""
    until: str | None = None
    """The newest that is not younger; None: the newest whose kernels differ."""


def parse_against(text: str) -> str | Kept:
    """A revision as it is, or which kept rows are meant. Raises `ValueError`."""
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
    """--against."""
    parser.add_argument(
        "--against",
        type=argument_type(parse_against),
        metavar="REVISION|kept[:ROW|:DATE]",
        help="set each variant beside itself as it was in git, or in a row that --keep has kept: the newest with other "
        "kernels, that row, or the newest up to that date; and say what changed beyond noise",
    )
