"""What every operation's problem is: frozen, validated, without arrays. An operation's own class adds its fields."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

INPUT, OUTPUT, OPTIONAL_OUTPUT = "input", "output", "optional output"
ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int32": 4, "int64": 8, "uint8": 1}
"""Bytes per element of each dtype that arrays on the device may have."""

P = TypeVar("P", bound="BaseProblem")


@dataclass(frozen=True)
class Tensor:
    """A named array of an operation."""

    name: str
    """What kernels' arguments and messages call it, such as `Q`."""
    shape: tuple[int, ...]
    """Extents in elements, C-contiguous."""
    dtype: str
    """A key of `ELEMENT_BYTES`."""
    role: str
    """`INPUT`; `OUTPUT`, which every variant writes; `OPTIONAL_OUTPUT`, which a plan has as a buffer or has not."""
    axes: tuple[str, ...]
    """What its axes are called, in messages and patterns."""

    @property
    def size_bytes(self) -> int:
        """Bytes that the array takes."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


class BaseProblem(ABC):
    """One instance of an operation. Subclasses are frozen dataclasses that raise `ProblemError` for bad fields."""

    operation: ClassVar[str]
    """The operation's name, such as `attention`."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """Every array of the problem: inputs first, then outputs, the main one first, then optional ones."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations that the problem takes, as its field counts them; what no kernel can do without."""

    @property
    @abstractmethod
    def headline(self) -> str:
        """The problem in one line, for people."""

    @property
    def features(self) -> tuple[str, ...]:
        """What a variant has to take (`Variant.takes`) besides the plainest problem."""
        return ()

    def with_role(self, *roles: str) -> tuple[Tensor, ...]:
        """The tensors that have one of these roles, in order."""
        return tuple(tensor for tensor in self.tensors if tensor.role in roles)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What a plan is given."""
        return self.with_role(INPUT)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """What every plan has to write."""
        return self.with_role(OUTPUT)

    @property
    def compulsory_read_bytes(self) -> int:
        """Every input read once."""
        return sum(tensor.size_bytes for tensor in self.inputs)

    @property
    def compulsory_write_bytes(self) -> int:
        """Every output that is not optional written once."""
        return sum(tensor.size_bytes for tensor in self.outputs)

    @property
    def compulsory_bytes(self) -> int:
        """Every input read once, every output written once."""
        return self.compulsory_read_bytes + self.compulsory_write_bytes

    def to_fields(self) -> dict[str, Any]:
        """The fields as plain values that JSON has; `from_fields` makes the same problem of them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_fields(cls: type[P], fields: Mapping[str, Any]) -> P:
        """The problem with these fields, the others at their defaults. Raises `ProblemError`, `TypeError`."""
        return cls(**fields)
