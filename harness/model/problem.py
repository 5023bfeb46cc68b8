"""Base class of problems: frozen and validated, without arrays. Each operation's class adds its fields."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from harness.support.errors import ProblemError
from harness.support.numbers import whole_number

if TYPE_CHECKING:
    from harness.model.sharing import Sharing
    from harness.model.spread import Spread

INPUT, OUTPUT, OPTIONAL_OUTPUT, IN_OUT = "input", "output", "optional output", "input and output"
ELEMENT_BYTES = {
    "float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int32": 4, "int64": 8, "uint8": 1, "float8_e4m3fn": 1,
}  # fmt: skip
"""Bytes per element of each dtype that arrays on the device may have."""

LARGEST_EXTENT = 2**31 - 1
"""Largest extent of an axis, since kernels take it as an int32."""

P = TypeVar("P", bound="BaseProblem")


def require_extents(problem: BaseProblem, *fields: str) -> None:
    """Raise `ProblemError` if one of these fields is not a valid extent of an axis."""
    for field in fields:
        value = getattr(problem, field)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ProblemError(f"{field} is {value!r}; it has to be a whole number of at least 1")
        if value > LARGEST_EXTENT:
            raise ProblemError(f"{field} is beyond {LARGEST_EXTENT}, the most that an axis may have")


@dataclass(frozen=True)
class Placement:
    """Where the elements of a tensor lie if they are not a C-contiguous array of their own."""

    buffer: str
    """Name of the buffer that contains them. Several tensors may lie in one."""
    elements: int
    """Number of elements of that buffer."""
    first: int
    """Where the tensor's first element lies in it, in elements."""
    strides: tuple[int, ...]
    """Elements from one index to the next along each axis."""


@dataclass(frozen=True)
class Tensor:
    """A named array of an operation."""

    name: str
    """Name in messages and in the arguments of kernels, such as `Q`."""
    shape: tuple[int, ...]
    """Extents in elements."""
    dtype: str
    """A key of `ELEMENT_BYTES`."""
    role: str
    """`INPUT`, which no kernel may change; `OUTPUT`, which every variant writes; `OPTIONAL_OUTPUT`, which is written if
    a plan has a buffer for it; or `IN_OUT`, which is given, and of which every variant writes a part: it is compared
    whole, so that an element that changed and should not have is an error."""
    axes: tuple[str, ...]
    """Names of its axes, in messages and error maps."""
    placement: Placement | None = None
    """Where its elements lie. None: it has a buffer of its own, of its name, and is C-contiguous."""
    device: int = 0
    """The device in whose memory it lies, counted from 0."""

    @property
    def buffer(self) -> str:
        """Name of the buffer that contains it."""
        return self.name if self.placement is None else self.placement.buffer

    @property
    def first(self) -> int:
        """Where its first element lies in its buffer, in elements."""
        return 0 if self.placement is None else self.placement.first

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index to the next along each axis."""
        if self.placement is not None:
            return self.placement.strides
        return tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))

    def axis(self, name: str) -> int | None:
        """Return the index of the axis of this name; None if there is none."""
        return self.axes.index(name) if name in self.axes else None

    @property
    def size_bytes(self) -> int:
        """Size of its elements in bytes."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class Option:
    """Metadata of a problem's field that is an option on the command line."""

    help: str
    """Meaning of the value, without its default."""
    metavar: str = "N"
    parse: Callable[[str], Any] = whole_number
    """Converts text to the field's value. Raises `ValueError` or `ProblemError`."""
    default_text: str | None = None
    """Description of the default if it is not just a value."""
    is_flag: bool = False
    """Whether the option is a flag, which sets True and has no value."""
    if_alone: Any = None
    """The field's value if the option is given without one. None: it needs one."""


def option(default: Any, help: str, **rest: Any) -> Any:
    """Declare a dataclass field as an option on the command line. `rest` are fields of `Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(help, **rest)})


class BaseProblem(ABC):
    """An instance of an operation. Subclasses are frozen dataclasses that raise `ProblemError` for invalid fields."""

    operation: ClassVar[str]
    """Name of the operation, such as `attention`."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """Every array of the problem: inputs, then outputs, beginning with the main one, then optional outputs."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations that every kernel for this problem needs, by the operation's convention."""

    @property
    @abstractmethod
    def headline(self) -> str:
        """Describe the problem in one line."""

    @property
    @abstractmethod
    def build_key(self) -> tuple[Hashable, ...]:
        """Compile-time parameters: problems with equal keys run on the same compiled kernels, except for tiles."""

    @property
    def size_class(self) -> tuple[Hashable, ...]:
        """Key under which tuned tile sizes are stored: each size's order of magnitude, and other relevant fields."""
        return tuple(
            value.bit_length() if isinstance(value, int) and not isinstance(value, bool) else str(value)
            for value in self.to_fields().values()
        )

    @property
    def features(self) -> tuple[str, ...]:
        """Features that a variant must support (`Variant.takes`) beyond the plainest problem."""
        return ()

    def tensor(self, name: str) -> Tensor:
        """Return the tensor of this name. Raises `KeyError` if there is none."""
        found = {tensor.name: tensor for tensor in self.tensors}
        return found[name]

    @property
    def spread(self) -> Spread | None:
        """Where the problem's entries lie in a huge one that kernels get instead; None if kernels get the problem."""
        return None

    @property
    def of_kernels(self) -> BaseProblem:
        """The problem that kernels get: this one, or a huge one in which its entries lie far apart."""
        return self if self.spread is None else self.spread.problem

    @property
    def devices(self) -> int:
        """Number of devices that compute it together."""
        return 1

    @property
    def sharing(self) -> Sharing | None:
        """Which device holds which part of each tensor; None if one device holds all of them."""
        return None

    @property
    def most_received_bytes(self) -> int | None:
        """Most bytes of a device's buffers into which other devices copy; None for no limit."""
        return None

    def most_device_bytes(self, device: int) -> int | None:
        """Return the most bytes that a device may hold at all, the problem's tensors included; None for no limit."""
        return None

    def with_role(self, *roles: str) -> tuple[Tensor, ...]:
        """Return the tensors that have one of these roles, in order."""
        return tuple(tensor for tensor in self.tensors if tensor.role in roles)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that a plan is given: those that it may only read, and those of which it writes a part."""
        return self.with_role(INPUT, IN_OUT)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensors that every plan must write, whole or a part of them."""
        return self.with_role(OUTPUT, IN_OUT)

    @property
    def compulsory_read_bytes(self) -> int:
        """Bytes moved if every input is read once. Problems with tensors of the role `IN_OUT` have their own count."""
        return sum(tensor.size_bytes for tensor in self.inputs)

    @property
    def compulsory_write_bytes(self) -> int:
        """Bytes moved if every required output is written once."""
        return sum(tensor.size_bytes for tensor in self.outputs)

    @property
    def compulsory_bytes(self) -> int:
        """Bytes moved if every input is read once and every required output is written once."""
        return self.compulsory_read_bytes + self.compulsory_write_bytes

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Return the names of the fields, in order."""
        return tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]

    def to_fields(self) -> dict[str, Any]:
        """Return the fields as JSON values, for `from_fields`."""
        return {name: getattr(self, name) for name in self.field_names()}

    def to_short_fields(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults as JSON values, for `from_fields`."""
        plain = type(self)().to_fields()
        return {name: value for name, value in self.to_fields().items() if value != plain[name]}

    @classmethod
    def from_fields(cls: type[P], fields: Mapping[str, Any]) -> P:
        """Return the problem with these fields and defaults for the others. Raises `ProblemError` or `TypeError`."""
        return cls(**fields)
