"""Defines a float64 answer by output, with the intermediate results that it was computed from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from harness.model.array_types import Float64Array

Block = TypeVar("Block")


@dataclass(frozen=True, eq=False)
class Reference(Mapping[str, Float64Array], Generic[Block]):
    """The outputs of a problem, or of a part of it, in float64, by name."""

    outputs: Mapping[str, Float64Array]
    blocks: tuple[Block, ...] | None = field(default=None, repr=False)
    """Intermediate results, so that tolerances need not compute them again; None if they are too large to store."""

    def __getitem__(self, output: str) -> Float64Array:
        return self.outputs[output]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)
