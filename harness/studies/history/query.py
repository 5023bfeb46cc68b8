"""Selects stored rows by variant, study, operation, problem and date."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from harness.execution.results.store import Store
from harness.support.errors import UsageError
from harness.support.numbers import shown

_AGO = re.compile(r"([0-9]{1,5})([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 168}


@dataclass(frozen=True)
class Query:
    """Selection criteria. Empty criteria select everything."""

    variants: tuple[str, ...] = ()
    """Names, or shell patterns such as `fa*`."""
    study: str | None = None
    operation: str | None = None
    since: str | None = None
    """The earliest time in the format of rows, such as `2026-03-01`; None for no limit."""
    where: tuple[tuple[str, Any], ...] = ()
    """Fields of the problem with their required values."""

    def rows(self, store: Store, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """These fields of the matching rows, oldest first.

        Raises `UsageError` for a variant that is not in the store.
        """
        conditions, values = [], list[str]()
        for field in ("study", "operation"):
            if (value := getattr(self, field)) is not None:
                conditions.append(f"{field} = ?")
                values.append(value)
        if self.since is not None:
            conditions.append("kept_at >= ?")
            values.append(self.since)
        if self.variants:
            self._require_known(store)
            conditions.append(f"({' OR '.join(['variant GLOB ?'] * len(self.variants))})")
            values += map(_as_sql, self.variants)
        found = store.select((*columns, "problem"), " AND ".join(conditions), values)
        if self.where:
            fulfils = self._condition()
            found = [row for row in found if fulfils(row[-1])]
        return [row[:-1] for row in found]

    def _require_known(self, store: Store) -> None:
        for pattern in self.variants:
            if not store.has("variant GLOB ?", (_as_sql(pattern),)):
                raise UsageError(f"no results of a variant {pattern!r} are stored; 'history' without a name shows all")

    def _condition(self) -> Callable[[str | None], bool]:
        """A cached predicate on a problem's JSON: whether it has the required fields."""
        known: dict[str | None, bool] = {None: False}

        def fulfils(problem: str | None) -> bool:
            if problem not in known:
                fields = json.loads(problem or "{}")
                known[problem] = all(name in fields and fields[name] == value for name, value in self.where)
            return known[problem]

        return fulfils


def parse_where(text: str) -> tuple[str, Any]:
    """Parse `q_len=512` to the field and its value. Raises `ValueError`."""
    name, equals, word = (part.strip() for part in text.partition("="))
    name = name.replace("-", "_")
    if not equals or not name.isidentifier():
        raise ValueError(f"{shown(text)} is not FIELD=VALUE, such as q_len=512")
    try:
        value = json.loads(word.lower() if word.lower() in ("true", "false") else "null" if word == "none" else word)
    except ValueError:
        return name, word
    if name == "mask" or isinstance(value, dict | list):
        return name, word
    return name, value


def parse_since(text: str) -> str:
    """Parse a date, a UTC time, or a number of hours, days or weeks ago, to the time format of rows.

    Raises `ValueError`.
    """
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            at = datetime.now(timezone.utc) - timedelta(hours=int(ago[1]) * _HOURS[ago[2]])
        else:
            at = datetime.fromisoformat(text.removesuffix("Z"))
            at = at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{shown(text)} is not a time; write 2026-03-01, 2026-03-01T12:00 (UTC), or an age such as 12h, 7d, 4w"
        ) from None
    return at.strftime("%Y-%m-%dT%H:%M:%S")


def _as_sql(pattern: str) -> str:
    """Convert a shell pattern to SQLite's GLOB syntax."""
    return pattern.replace("[!", "[^")
