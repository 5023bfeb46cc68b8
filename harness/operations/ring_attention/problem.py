"""Defines a problem of ring attention: one of attention, and how its rows are divided over devices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.model.problem import ELEMENT_BYTES, INPUT, OPTIONAL_OUTPUT, OUTPUT, Tensor, option
from harness.model.sharing import Share, Sharing
from harness.operations.attention.masks import NO_MASK, parse_mask
from harness.operations.attention.problem import Problem
from harness.operations.attention.sizes import Sizes
from harness.operations.ring_attention.order import (
    CONTIGUOUS,
    ORDERS,
    chunks_per_device,
    mask_between,
    rows_of_devices,
)
from harness.support.errors import ProblemError
from harness.support.override import override
from harness.support.suggestion import did_you_mean

MOST_DEVICES = 64
ROW_AXIS = 2
SLOTS = 2
"""Visiting blocks of K and V for which a device has room: one is computed with while the next one arrives."""


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


@dataclass(frozen=True, kw_only=True)
class RingProblem(Sizes):
    """O = softmax(scale * Q K^T + mask) V of one sequence per (batch, head), divided over devices by rows.

    All arrays are those of attention, of which each device holds the rows that `order` assigns to it: those of Q, K and
    V when it begins, those of O and lse when it ends. Raises `ProblemError` if a field is invalid.
    """

    operation: ClassVar[str] = "ring-attention"

    devices: int = option(4, "devices over which rows are divided")
    """Number of devices, each with its own memory."""
    row_order: str = option(CONTIGUOUS, f"rows of each device: {', '.join(ORDERS)}", metavar="ORDER", parse=str)
    """Which rows a device holds: a key of `ORDERS`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.devices, bool) or not isinstance(self.devices, int) or not 1 <= self.devices <= MOST_DEVICES:
            raise ProblemError(f"devices is {self.devices!r}; it has to be a whole number from 1 to {MOST_DEVICES}")
        if self.row_order not in ORDERS:
            raise ProblemError(
                f"no order {self.row_order!r}{did_you_mean(self.row_order, ORDERS)} Orders: {', '.join(ORDERS)}"
            )
        if self.q_len != self.kv_len:
            raise ProblemError(
                f"q_len is {self.q_len} and kv_len {self.kv_len}; ring attention takes Q, K and V of one sequence: "
                "choose both with seq_len"
            )
        if self.mask not in (NO_MASK, parse_mask("causal")):
            raise ProblemError(f"mask {self.mask}: ring attention takes none or causal")
        least = self.devices * chunks_per_device(self.row_order)
        if self.q_len < least:
            raise ProblemError(
                f"seq_len is {self.q_len}; {self.devices} devices in {self.row_order} order need at least {least} rows"
            )

    @property
    def whole(self) -> Problem:
        """The problem of attention that the devices compute together."""
        return Problem(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Sizes)})

    @property
    def chunks(self) -> tuple[tuple[Chunk, ...], ...]:
        """The chunks of each device."""
        return _chunks(self.row_order, self.devices, self.q_len)

    def block(self, rows: Chunk, keys: Chunk) -> Problem | None:
        """Return the problem of attention of a chunk's rows with another one's keys; None if they see none of them."""
        mask = mask_between(rows.rows, keys.rows) if self.causal else NO_MASK
        if mask is None:
            return None
        return dataclasses.replace(self.whole, q_len=len(rows.rows), kv_len=len(keys.rows), mask=mask)

    def kv_bytes(self, device: int) -> int:
        """Return the bytes of the block of K and V that a device holds, and that goes round."""
        rows = sum(len(chunk.rows) for chunk in self.chunks[device])
        return 2 * self.batch * self.kv_heads_count * rows * self.head_dim * self.itemsize_bytes

    @property
    @override
    def most_received_bytes(self) -> int | None:
        """Two visiting blocks of K and V, of the largest size."""
        return SLOTS * self._slot_bytes

    @property
    def _slot_bytes(self) -> int:
        rows = chunks_per_device(self.row_order) * max(
            len(chunk.rows) for of_device in self.chunks for chunk in of_device
        )
        return 2 * self.batch * self.kv_heads_count * rows * self.head_dim * self.itemsize_bytes

    @override
    def most_device_bytes(self, device: int) -> int | None:
        """The device's own rows of Q, K, V, O and lse, two visiting blocks, and O and lse of a block and of their sum.

        The sum is in float32.
        """
        q_rows = self.batch * self.heads * sum(len(chunk.rows) for chunk in self.chunks[device])
        of_rows = q_rows * (self.head_dim * self.itemsize_bytes + ELEMENT_BYTES["float32"])
        sums = q_rows * (self.head_dim + 1) * ELEMENT_BYTES["float32"]
        q_bytes = q_rows * self.head_dim * self.itemsize_bytes
        return q_bytes + 2 * of_rows + sums + self.kv_bytes(device) + SLOTS * self._slot_bytes

    @property
    def features(self) -> tuple[str, ...]:
        """`causal`, if it is."""
        return tuple(part.kind for part in self.mask.parts)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Q, K, V, O, and optionally lse, of the whole sequence."""
        return self.whole.tensors

    @property
    @override
    def sharing(self) -> Sharing | None:
        return _sharing(self)

    @property
    @override
    def build_key(self) -> tuple[Hashable, ...]:
        return (self.dtype, self.head_dim)

    @property
    @override
    def size_class(self) -> tuple[Hashable, ...]:
        return (*self.whole.size_class, self.devices.bit_length(), self.row_order)

    @property
    def flops(self) -> int:
        """Those of attention, over all devices."""
        return self.whole.flops

    @property
    @override
    def headline(self) -> str:
        plural = "s" if self.devices > 1 else ""
        return f"ring attention over {self.devices} device{plural} in {self.row_order} order, {self.whole.headline}"

    @override
    def to_fields(self) -> dict[str, Any]:
        """Return the fields as JSON values. `causal` repeats `mask`, as attention has it."""
        return super().to_fields() | {"causal": self.causal, "mask": self.mask.text}

    @override
    def to_short_fields(self) -> dict[str, Any]:
        """Return `to_fields` without defaults, but with all sizes."""
        plain = RingProblem(heads=self.heads, head_dim=self.head_dim).to_fields()
        sizes = ("heads", "q_len", "kv_len", "head_dim", "devices", "row_order")
        short = {name: value for name, value in self.to_fields().items() if name in sizes or value != plain.get(name)}
        short.pop("causal", None)
        return short

    @classmethod
    @override
    def from_fields(cls, fields: Mapping[str, Any]) -> RingProblem:
        """Return the problem with these fields; `causal` adds a causal mask. Raises `ProblemError` or `TypeError`."""
        given = dict(fields)
        causal = given.pop("causal", False)
        if not isinstance(causal, bool):
            raise ProblemError(f"causal is {causal!r}; it has to be true or false")
        return cls(**{**given, "mask": "causal"} if causal else given)


@functools.lru_cache(maxsize=64)
def _chunks(order: str, devices: int, length: int) -> tuple[tuple[Chunk, ...], ...]:
    of_devices = rows_of_devices(order, devices, length)
    letters = "ab" if chunks_per_device(order) > 1 else ("",)
    return tuple(
        tuple(Chunk(device, letter, rows) for letter, rows in zip(letters, chunks))
        for device, chunks in enumerate(of_devices)
    )


class HeldRingProblem(RingProblem):
    """A problem of ring attention with a tensor for each chunk in place of whole ones, as kernels get them."""

    @property
    @override
    def tensors(self) -> tuple[Tensor, ...]:
        return _held_tensors(self)

    @property
    @override
    def sharing(self) -> Sharing | None:
        return None


@functools.lru_cache(maxsize=64)
def _held_tensors(problem: RingProblem) -> tuple[Tensor, ...]:
    chunks = [chunk for of_device in problem.chunks for chunk in of_device]
    found = []
    for tensor in problem.whole.tensors:
        for chunk in chunks:
            shape = (*tensor.shape[:ROW_AXIS], len(chunk.rows), *tensor.shape[ROW_AXIS + 1 :])
            found.append(
                Tensor(chunk.of(tensor.name), shape, tensor.dtype, tensor.role, tensor.axes, device=chunk.device)
            )
    assert {tensor.role for tensor in found} == {INPUT, OUTPUT, OPTIONAL_OUTPUT}
    return tuple(found)


@functools.lru_cache(maxsize=64)
def _sharing(problem: RingProblem) -> Sharing:
    held = HeldRingProblem(**{field.name: getattr(problem, field.name) for field in dataclasses.fields(RingProblem)})
    shares = tuple(
        Share(tensor.name, chunk.of(tensor.name), ROW_AXIS, chunk.rows)
        for tensor in problem.whole.tensors
        for of_device in problem.chunks
        for chunk in of_device
    )
    return Sharing(held, shares)
