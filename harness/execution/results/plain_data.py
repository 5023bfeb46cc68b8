"""Converts results to JSON values and back: numbers, texts, containers, problems, and dataclasses of `harness`.

Deserialization runs no code but the constructors of dataclasses of `harness`, since others may write to a store.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from harness.model.cases.case import Case
from harness.model.operation import operation_named
from harness.model.problem import BaseProblem

KIND = "="
"""The key that holds an object's type: `tuple`, `dict`, `problem`, `case`, or a class as `module:Name`."""


def to_plain(value: Any) -> Any:
    """Convert a value for `from_plain`. Raises `TypeError` for unsupported types."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [to_plain(each) for each in value]
    if isinstance(value, tuple):
        return {KIND: "tuple", "of": [to_plain(each) for each in value]}
    if isinstance(value, Mapping):
        return {KIND: "dict", "of": [[to_plain(key), to_plain(each)] for key, each in value.items()]}
    if isinstance(value, BaseProblem):
        return {KIND: "problem", "operation": value.operation, "fields": value.to_fields()}
    if isinstance(value, Case):
        return {KIND: "case", "of": value.to_json()}
    kind = type(value)
    if not dataclasses.is_dataclass(value) or not kind.__module__.startswith("harness."):
        raise TypeError(f"{kind.__module__}.{kind.__name__} is no plain data")
    fields = {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    return {KIND: f"{kind.__module__}:{kind.__qualname__}", **fields}


def from_plain(plain: Any) -> Any:
    """Restore a value. Raises `TypeError` or `ValueError` for data that `to_plain` did not produce."""
    if isinstance(plain, list):
        return [from_plain(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    content = dict(plain)
    kind = content.pop(KIND, None)
    if kind == "tuple":
        return tuple(from_plain(each) for each in content["of"])
    if kind == "dict":
        return {from_plain(key): from_plain(each) for key, each in content["of"]}
    if kind == "problem":
        problem: type[BaseProblem] = operation_named(content["operation"]).problem
        return problem.from_fields(content["fields"])
    if kind == "case":
        return Case.from_json(content["of"])
    made = _dataclass(kind)
    return made(**{name: from_plain(each) for name, each in content.items()})


def _dataclass(kind: Any) -> type[Any]:
    module, colon, name = str(kind).partition(":")
    if not colon or not module.startswith("harness.") or not name.isidentifier():
        raise ValueError(f"{kind!r} is no dataclass of the sandbox")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{kind!r} is no dataclass of this version") from error
    if not isinstance(found, type) or not dataclasses.is_dataclass(found):
        raise ValueError(f"{kind!r} is no dataclass")
    return found
