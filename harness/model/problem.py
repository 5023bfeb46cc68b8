"""What every operation's problem is: frozen, validated, without arrays. An operation's own class adds its fields."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from harness.support.errors import ProblemError
from harness.support.numbers import whole_number

INPUT, OUTPUT, OPTIONAL_OUTPUT = "input", "output", "optional output"
ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int32": 4, "int64": 8, "uint8": 1}
"""Bytes per element of each dtype that arrays on the device may have."""

LARGEST_EXTENT = 2**31 - 1
"""The largest extent of an axis: kernels take it as an int32."""

P = TypeVar("P", bound="BaseProblem")


def require_extents(problem: BaseProblem, *fields: str) -> None:
    """Raise `ProblemError` where one of these fields is no extent of an axis."""
    for field in fields:
        value = getattr(problem, field)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ProblemError(f"{field} is {value!r}; it has to be a whole number of at least 1")
        if value > LARGEST_EXTENT:
            raise ProblemError(f"{field} is beyond {LARGEST_EXTENT}, the most that an axis may have")


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


@dataclass(frozen=True)
class Option:
    """How a field of a problem is said on the command line: what its dataclass field carries as metadata."""

    help: str
    """What the value means, without its default."""
    metavar: str = "N"
    parse: Callable[[str], Any] = whole_number
    """Text -> the field's value. Raises `ValueError` or `ProblemError`."""
    default_text: str | None = None
    """What to call the default where it is not just a value."""
    is_flag: bool = False
    """Whether to name it is to say True, without a value."""


def option(default: Any, help: str, **rest: Any) -> Any:
    """The default of a dataclass field that is an option on the command line; `rest` are fields of `Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(help, **rest)})


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
    @abstractmethod
    def build_key(self) -> tuple[Hashable, ...]:
        """What kernels have compiled in: problems with equal keys run on the same compiled kernels, tiles aside."""

    @property
    def size_class(self) -> tuple[Hashable, ...]:
        """What tuned tile sizes are kept under: the order of magnitude of each size, and all else that matters."""
        return tuple(
            value.bit_length() if isinstance(value, int) and not isinstance(value, bool) else str(value)
            for value in self.to_fields().values()
        )

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

    def to_short_fields(self) -> dict[str, Any]:
        """`to_fields` without what has its default anyway; `from_fields` makes the same problem of them."""
        plain = type(self)().to_fields()
        return {name: value for name, value in self.to_fields().items() if value != plain[name]}

    @classmethod
    def from_fields(cls: type[P], fields: Mapping[str, Any]) -> P:
        """The problem with these fields, the others at their defaults. Raises `ProblemError`, `TypeError`."""
        return cls(**fields)
