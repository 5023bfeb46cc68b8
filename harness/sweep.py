"""What a sweep is: one field of the problem and its values; and what comes out: a point per variant and value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.errors import UsageError
from harness.measure.arithmetic import matrix_flops
from harness.problem import Problem

LARGEST_LENGTH = 2**20
LARGEST_ROWS = 2**22
"""Rows of all heads together. Beyond, even the closed forms would take minutes."""
LARGEST_VALUES = 64

Value = int | float | bool | str

_WHOLE = ("batch", "heads", "kv_heads", "seq_len", "q_len", "kv_len", "head_dim")
FIELDS = (*_WHOLE, "dtype", "causal", "scale")
"""What can be swept: the fields of a problem, and seq_len for q_len and kv_len together."""
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Sweep:
    """One field and its values, in order."""

    field: str
    values: tuple[Value, ...]

    @property
    def is_numeric(self) -> bool:
        """Whether the values lie on an axis."""
        return self.field not in ("dtype", "causal")


def parse_sweep(text: str) -> Sweep:
    """`FIELD=a..b`, doubling from a up to b, or `FIELD=a,b,c`. Raises `UsageError`."""
    field, equals, words = text.partition("=")
    field = field.strip().replace("-", "_")
    if not equals:
        raise UsageError(f"--sweep {text!r} is not FIELD=a..b or FIELD=a,b,c, such as q_len=512..4096")
    if field not in FIELDS:
        raise UsageError(f"--sweep: a problem has no field {field!r}; choose one of {', '.join(FIELDS)}")
    first, dots, last = words.partition("..")
    if dots:
        values = _doubling(field, first.strip(), last.strip())
    else:
        values = [_value(field, word.strip()) for word in words.split(",") if word.strip()]
    if not values:
        raise UsageError(f"--sweep {text!r} has no values")
    if len(set(values)) < len(values):
        raise UsageError(f"--sweep {text!r} has a value twice")
    if len(values) > LARGEST_VALUES:
        raise UsageError(f"--sweep {text!r} has {len(values)} values; {LARGEST_VALUES} are the most")
    return Sweep(field, tuple(values))


def _doubling(field: str, first: str, last: str) -> list[Value]:
    if field not in _WHOLE:
        raise UsageError(f"--sweep: {field} has no range; list its values, {field}=a,b,c")
    low, high = _value(field, first), _value(field, last)
    assert isinstance(low, int) and isinstance(high, int)
    if low < 1:
        raise UsageError(f"--sweep: {field} begins at {low}; it has to be at least 1")
    if low > high:
        raise UsageError(f"--sweep: {field}={first}..{last} is empty; the smaller one comes first")
    values: list[Value] = []
    while low <= high and len(values) <= LARGEST_VALUES:
        values.append(low)
        low *= 2
    return values


def _value(field: str, word: str) -> Value:
    try:
        if field in _WHOLE:
            return int(word)
        if field == "scale":
            return float(word)
    except ValueError:
        kind = "whole number" if field in _WHOLE else "number"
        raise UsageError(f"--sweep: {field} takes {kind}s, not {word!r}") from None
    if field == "causal":
        if word.lower() not in _TRUTH:
            raise UsageError(f"--sweep: causal is true or false, not {word!r}")
        return _TRUTH[word.lower()]
    return word


def require_sensible(problems: Iterable[Problem]) -> None:
    """Raise `UsageError` where a problem is so large that even closed forms would not end soon."""
    for p in problems:
        longest = max(p.q_len, p.kv_len)
        rows = p.batch * p.heads * longest
        if longest > LARGEST_LENGTH or rows > LARGEST_ROWS or p.head_dim > LARGEST_LENGTH:
            raise UsageError(
                f"--sweep reaches batch {p.batch}, {p.heads} heads, {p.q_len} x {p.kv_len}, head_dim {p.head_dim}; "
                f"the most is {LARGEST_LENGTH:,} rows, {LARGEST_ROWS:,} over all heads"
            )


@dataclass(frozen=True)
class SweepPoint:
    """One variant at one value."""

    variant: str
    algorithm: str
    backend: str
    value: Value
    problem: Problem
    source: str | None
    """`counted` or `claimed`: where the bytes come from. None where there are none; `reason` says why."""
    read_bytes: int | None = None
    """At the `sectors` level."""
    write_bytes: int | None = None
    """At the `sectors` level."""
    requested_bytes: int | None = None
    """Read and written, as the lanes asked for them; None where not counted."""
    claim_holds: bool | None = None
    """Claimed and counted bytes are equal; None where either is not known."""
    reason: str | None = None
    failed: bool = False
    """Something went wrong, as opposed to: the variant does not take the problem, or claims nothing."""

    @property
    def total_bytes(self) -> int | None:
        """Read and written, at the `sectors` level."""
        return None if self.read_bytes is None or self.write_bytes is None else self.read_bytes + self.write_bytes

    @property
    def flops(self) -> int:
        """Of the two matrix products."""
        return matrix_flops(self.problem)

    @property
    def intensity(self) -> float | None:
        """FLOP per byte at the `sectors` level."""
        return self.flops / self.total_bytes if self.total_bytes else None
