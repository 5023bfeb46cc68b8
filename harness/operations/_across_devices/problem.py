"""Defines problems of attention that several devices compute together, each with some of the rows of some tensors."""

from __future__ import annotations

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from harness.model.problem import INPUT, OPTIONAL_OUTPUT, OUTPUT, Tensor, option
from harness.model.sharing import Share, Sharing
from harness.operations.attention.masks import NO_MASK, parse_mask
from harness.operations.attention.problem import Problem
from harness.operations.attention.sizes import Sizes
from harness.support.errors import ProblemError
from harness.support.override import override

if TYPE_CHECKING:
    from typing_extensions import Self

MOST_DEVICES = 64
ROW_AXIS = 2


@dataclass(frozen=True)
class Chunk:
    """Rows of the sequence that a device holds as one array of Q, of K, of V, of O and of lse."""

    device: int
    letter: str
    """`a` or `b` if a device has two chunks; else empty."""
    rows: range
    """Their places in the sequence."""

    def of(self, tensor: str) -> str:
        """Return the name of its part of a tensor, such as `K@1` or `K@1b`."""
        return f"{tensor}@{self.device}{self.letter}"

    def rows_of(self, array: np.ndarray) -> np.ndarray:
        """Return its rows of an array of the whole sequence, C-contiguous."""
        where = slice(self.rows.start, self.rows.stop, self.rows.step)
        return np.ascontiguousarray(array[(slice(None),) * ROW_AXIS + (where,)])


@dataclass(frozen=True, kw_only=True)
class DividedProblem(Sizes):
    """A problem of attention whose keys are divided over devices. Subclasses add where rows of Q are.

    Raises `ProblemError` if a field is invalid.
    """

    in_words: ClassVar[str]
    """What the operation computes, as a headline begins."""

    devices: int = option(4, "devices over which rows are divided")
    """Number of devices, each with its own memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.devices, bool) or not isinstance(self.devices, int) or not 1 <= self.devices <= MOST_DEVICES:
            raise ProblemError(f"devices is {self.devices!r}; it has to be a whole number from 1 to {MOST_DEVICES}")
        if self.mask not in (NO_MASK, parse_mask("causal")):
            raise ProblemError(f"mask {self.mask}: {self.operation.replace('-', ' ')} takes none or causal")

    @property
    def whole(self) -> Problem:
        """The problem of attention that the devices compute together."""
        return Problem(**self.sizes)

    @property
    def sizes(self) -> dict[str, Any]:
        """The fields that the problem of the whole sequence has, too."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(Sizes)}

    @property
    @abstractmethod
    def chunks(self) -> tuple[tuple[Chunk, ...], ...]:
        """The chunks of keys of each device."""

    @property
    def all_chunks(self) -> tuple[Chunk, ...]:
        """The chunks of keys of all devices, one device after the other."""
        return tuple(chunk for of_device in self.chunks for chunk in of_device)

    def chunks_of(self, tensor: str) -> tuple[Chunk, ...]:
        """Return the chunks of a tensor."""
        return self.all_chunks

    @property
    def division_in_words(self) -> list[str]:
        """How it is divided, such as `3 devices`."""
        return [f"{self.devices} devices" if self.devices > 1 else "1 device"]

    def kv_bytes(self, device: int) -> int:
        """Return the bytes of the block of K and V that a device holds."""
        rows = sum(len(chunk.rows) for chunk in self.chunks[device])
        return 2 * self.batch * self.kv_heads_count * rows * self.head_dim * self.itemsize_bytes

    @property
    def features(self) -> tuple[str, ...]:
        """`causal`, if it is."""
        return tuple(part.kind for part in self.mask.parts)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those of the whole sequence."""
        return self.whole.tensors

    @property
    @override
    def sharing(self) -> Sharing | None:
        return _sharing(self)

    @property
    @abstractmethod
    def held(self) -> DividedProblem:
        """The same problem with a tensor for each chunk in place of whole ones, as kernels get them."""

    @property
    def own_fields(self) -> dict[str, Any]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    @override
    def build_key(self) -> tuple[Hashable, ...]:
        return (self.dtype, self.head_dim)

    @property
    @override
    def size_class(self) -> tuple[Hashable, ...]:
        return (*self.whole.size_class, self.devices.bit_length())

    @property
    def flops(self) -> int:
        """Those of the whole sequence, over all devices."""
        return self.whole.flops

    @property
    @override
    def headline(self) -> str:
        return f"{self.in_words} over {' in '.join(self.division_in_words)}, {self.whole.headline}"

    @override
    def to_fields(self) -> dict[str, Any]:
        """Return the fields as JSON values. `causal` repeats `mask`, as attention has it."""
        return super().to_fields() | {"causal": self.causal, "mask": self.mask.text}

    @override
    def to_short_fields(self) -> dict[str, Any]:
        """Return `to_fields` without defaults, but with all sizes."""
        plain = type(self)(heads=self.heads, head_dim=self.head_dim).to_fields()
        sizes = ("heads", "q_len", "kv_len", "head_dim", "devices", "row_order")
        short = {name: value for name, value in self.to_fields().items() if name in sizes or value != plain.get(name)}
        short.pop("causal", None)
        return short

    @classmethod
    @override
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the problem with these fields; `causal` adds a causal mask. Raises `ProblemError` or `TypeError`."""
        given = dict(fields)
        causal = given.pop("causal", False)
        if not isinstance(causal, bool):
            raise ProblemError(f"causal is {causal!r}; it has to be true or false")
        return cls(**{**given, "mask": "causal"} if causal else given)


class Held(DividedProblem):
    """What a problem has in common whose tensors are those that devices hold."""

    @property
    @override
    def tensors(self) -> tuple[Tensor, ...]:
        return _held_tensors(self)

    @property
    @override
    def sharing(self) -> Sharing | None:
        return None


@functools.lru_cache(maxsize=64)
def _held_tensors(problem: DividedProblem) -> tuple[Tensor, ...]:
    found = []
    for tensor in problem.whole.tensors:
        for chunk in problem.chunks_of(tensor.name):
            shape = (*tensor.shape[:ROW_AXIS], len(chunk.rows), *tensor.shape[ROW_AXIS + 1 :])
            found.append(
                Tensor(chunk.of(tensor.name), shape, tensor.dtype, tensor.role, tensor.axes, device=chunk.device)
            )
    assert {tensor.role for tensor in found} <= {INPUT, OUTPUT, OPTIONAL_OUTPUT}
    return tuple(found)


@functools.lru_cache(maxsize=64)
def _sharing(problem: DividedProblem) -> Sharing:
    shares = tuple(
        Share(tensor.name, chunk.of(tensor.name), ROW_AXIS, chunk.rows)
        for tensor in problem.whole.tensors
        for chunk in problem.chunks_of(tensor.name)
    )
    return Sharing(problem.held, shares)
