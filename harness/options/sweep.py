"""What a sweep is: one field of the problem, or one tile size, and its values; and what comes out: a point for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.model.tile_sizes import TileSizes
from harness.operations.attention.problem import Problem
from harness.support.errors import UsageError

LARGEST_LENGTH = 2**20
LARGEST_ROWS = 2**22
"""Rows of all heads together. Beyond, even the closed forms would take minutes."""
LARGEST_VALUES = 64

Value = int | float | bool | str

_WHOLE = ("batch", "heads", "kv_heads", "seq_len", "q_len", "kv_len", "head_dim")
FIELDS = (*_WHOLE, "dtype", "mask", "causal", "scale")
"""What can be swept: the fields of a problem, and seq_len for q_len and kv_len together."""
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Sweep:
    """One field and its values, in order."""

    field: str
    """Of the problem, or the name of a tile size."""
    values: tuple[Value, ...]
    of_tile: bool = False
    """Whether `field` is a tile size."""
    tile: TileSizes = dataclasses.field(default_factory=dict)
    """The tile sizes that were asked for besides; the others are each variant's own."""

    def tile_at(self, value: Value) -> dict[str, int]:
        """The tile sizes that are asked for at one of the values."""
        return {**self.tile, **({self.field: int(value)} if self.of_tile else {})}

    @property
    def is_numeric(self) -> bool:
        """Whether the values lie on an axis."""
        return self.field not in ("dtype", "mask", "causal")


def _no_names() -> Sequence[str]:
    return ()


def parse_sweep(text: str, tile_names: Callable[[], Sequence[str]] = _no_names) -> Sweep:
    """`FIELD=a..b`, doubling from a up to b, or `FIELD=a,b,c`. Raises `UsageError`.

    `tile_names` gives the tile sizes that can be swept; it is asked where FIELD is no field of a problem.
    """
    field, equals, words = text.partition("=")
    name, field = field.strip(), field.strip().replace("-", "_")
    if not equals:
        raise UsageError(f"--sweep {text!r} is not FIELD=a..b or FIELD=a,b,c, such as q_len=512..4096")
    of_tile = field not in FIELDS
    if of_tile:
        field, names = name, tile_names()
        if field not in names:
            tiles = f", or a tile size: {', '.join(names)}" if names else "; the chosen variants declare no tile sizes"
            raise UsageError(f"--sweep: a problem has no field {field!r}; choose one of {', '.join(FIELDS)}{tiles}")
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
    return Sweep(field, tuple(values), of_tile)


def _doubling(field: str, first: str, last: str) -> list[Value]:
    if field in FIELDS and field not in _WHOLE:
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
        if field in _WHOLE or field not in FIELDS:
            return int(word)
        if field == "scale":
            return float(word)
    except ValueError:
        kind = "number" if field == "scale" else "whole number"
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
    tile: TileSizes | None = None
    """The tile sizes that it used; None where it declares none."""
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
        return self.problem.flops

    @property
    def intensity(self) -> float | None:
        """FLOP per byte at the `sectors` level."""
        return self.flops / self.total_bytes if self.total_bytes else None
