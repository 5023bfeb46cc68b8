"""Parses a sweep: one field of the problem, or one tile size, and its values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.model.operation import Operation, operation_of
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import TileSizes, tile_text
from harness.options.problem import options_of
from harness.support.errors import UsageError
from harness.support.numbers import real_number, shown, whole_number

LARGEST_VALUES = 64

Value = int | float | bool | str

_KINDS: dict[Callable[[str], Any], type] = {whole_number: int, int: int, real_number: float, float: float}
"""Type of a field by the function that parses it. Fields with other parsers are texts."""
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _kind_of(field: str, operation: Operation) -> type | None:
    """Return the type of a field's values: int, float, bool or str; None if the operation has no such field."""
    if field in operation.lengths:
        return int
    options = options_of(operation)
    if field == "causal" and "mask" in options:
        return bool
    if field not in options:
        return None
    if options[field].is_flag:
        return bool
    return _KINDS.get(options[field].parse, str)


def fields_of(operation: Operation) -> tuple[str, ...]:
    """Return what can be swept: the fields of a problem, and names that set several of them together."""
    names = [*operation.lengths, *options_of(operation)]
    return tuple([*names, "causal"] if "mask" in names else names)


@dataclass(frozen=True)
class Sweep:
    """A field and its values, in order."""

    field: str
    """Name of a field of the problem, or of a tile size."""
    values: tuple[Value, ...]
    of_tile: bool = False
    """Whether `field` is a tile size."""
    tile: TileSizes = dataclasses.field(default_factory=dict)
    """Other tile sizes that the user set. The remaining ones are each variant's defaults."""
    sets: tuple[str, ...] = ()
    """Fields of the problem that the sweep sets."""

    def tile_at(self, value: Value) -> dict[str, int]:
        """Return the requested tile sizes for one of the values."""
        return {**self.tile, **({self.field: int(value)} if self.of_tile else {})}

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


def parse_sweep(text: str, operation: Operation, tile_names: Callable[[], Sequence[str]] = lambda: ()) -> Sweep:
    """Parse `FIELD=a..b`, which doubles from a up to b, or `FIELD=a,b,c`. Raises `UsageError`.

    `tile_names` returns the tile sizes that can be swept. It is called only if FIELD is not a field of a problem.
    """
    field, equals, words = text.partition("=")
    name, field = field.strip(), field.strip().replace("-", "_")
    if not equals:
        raise UsageError(f"--sweep {text!r} is not FIELD=a..b or FIELD=a,b,c, such as q_len=512..4096")
    kind = _kind_of(field, operation)
    of_tile = kind is None
    if kind is None:
        field, kind, names = name, int, tile_names()
        if field not in names:
            fields = ", ".join(fields_of(operation))
            tiles = f", or a tile size: {', '.join(names)}" if names else "; the chosen variants declare no tile sizes"
            raise UsageError(f"--sweep: a problem has no field {field!r}; choose one of {fields}{tiles}")
    first, dots, last = words.partition("..")
    if dots:
        values = _doubling(field, kind, first.strip(), last.strip())
    else:
        values = [_value(field, kind, word.strip()) for word in words.split(",") if word.strip()]
    if not values:
        raise UsageError(f"--sweep {text!r} has no values")
    if len(set(values)) < len(values):
        raise UsageError(f"--sweep {text!r} has a value twice")
    if len(values) > LARGEST_VALUES:
        raise UsageError(f"--sweep {text!r} has {len(values)} values; {LARGEST_VALUES} are the most")
    return Sweep(field, tuple(values), of_tile, sets=operation.lengths.get(field, (field,)))


def _doubling(field: str, kind: type, first: str, last: str) -> list[Value]:
    if kind is not int:
        raise UsageError(f"--sweep: {field} has no range; list its values, {field}=a,b,c")
    low, high = (_value(field, kind, word) for word in (first, last))
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


def _value(field: str, kind: type, word: str) -> Value:
    if kind is bool:
        if word.lower() not in _TRUTH:
            raise UsageError(f"--sweep: {field} is true or false, not {word!r}")
        return _TRUTH[word.lower()]
    try:
        return whole_number(word) if kind is int else real_number(word) if kind is float else word
    except ValueError:
        what = "number" if kind is float else "whole number"
        raise UsageError(f"--sweep: {field} takes {what}s, not {shown(word)}") from None


def what_is_fixed(sweep: Sweep, problems: Sequence[BaseProblem]) -> str:
    """Describe the fields that are equal in all problems. Fields with unimportant default values are omitted."""
    parts = []
    operation = operation_of(problems[0])
    for name in options_of(operation):
        values = {getattr(problem, name) for problem in problems}
        if len(values) == 1 and name not in sweep.sets:
            parts += operation.field_in_words(problems[0], name)
    if sweep.tile:
        parts.append(f"tile {tile_text(sweep.tile)}")
    return ", ".join(parts)
