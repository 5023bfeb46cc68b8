"""Defines a problem of ring attention: one of attention, and how its rows are divided over devices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from harness.model.problem import ELEMENT_BYTES, option
from harness.operations._across_devices.order import (
    CONTIGUOUS,
    ORDERS,
    chunks_per_device,
    mask_between,
    rows_of_devices,
)
from harness.operations._across_devices.problem import Chunk, DividedProblem, Held
from harness.operations.attention.masks import NO_MASK
from harness.operations.attention.problem import Problem
from harness.support.errors import ProblemError
from harness.support.override import override
from harness.support.suggestion import did_you_mean

SLOTS = 2
"""Visiting blocks of K and V for which a device has room: one is computed with while the next one arrives."""


@dataclass(frozen=True, kw_only=True)
class RingProblem(DividedProblem):
    """O = softmax(scale * Q K^T + mask) V of one sequence per (batch, head), divided over devices by rows.

    All arrays are those of attention, of which each device holds the rows that `order` assigns to it: those of Q, K and
    V when it begins, those of O and lse when it ends. Raises `ProblemError` if a field is invalid.
    """

    operation: ClassVar[str] = "ring-attention"
    in_words: ClassVar[str] = "ring attention"

    row_order: str = option(CONTIGUOUS, f"rows of each device: {', '.join(ORDERS)}", metavar="ORDER", parse=str)
    """Which rows a device holds: a key of `ORDERS`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.row_order not in ORDERS:
            raise ProblemError(
                f"no order {self.row_order!r}{did_you_mean(self.row_order, ORDERS)} Orders: {', '.join(ORDERS)}"
            )
        if self.q_len != self.kv_len:
            raise ProblemError(
                f"q_len is {self.q_len} and kv_len {self.kv_len}; ring attention takes Q, K and V of one sequence: "
                "choose both with seq_len"
            )
        least = self.devices * chunks_per_device(self.row_order)
        if self.q_len < least:
            raise ProblemError(
                f"seq_len is {self.q_len}; {self.devices} devices in {self.row_order} order need at least {least} rows"
            )

    @property
    @override
    def chunks(self) -> tuple[tuple[Chunk, ...], ...]:
        """The chunks of rows of each device, of Q as of K."""
        return _chunks(self.row_order, self.devices, self.q_len)

    @property
    @override
    def division_in_words(self) -> list[str]:
        return [*super().division_in_words, f"{self.row_order} order"]

    def block(self, rows: Chunk, keys: Chunk) -> Problem | None:
        """Return the problem of attention of a chunk's rows with another one's keys; None if they see none of them."""
        mask = mask_between(rows.rows, keys.rows) if self.causal else NO_MASK
        if mask is None:
            return None
        return dataclasses.replace(self.whole, q_len=len(rows.rows), kv_len=len(keys.rows), mask=mask)

    @property
    @override
    def most_received_bytes(self) -> int | None:
        """Two visiting blocks of K and V, of the largest size."""
        return SLOTS * self._slot_bytes

    @property
    def _slot_bytes(self) -> int:
        return self.slot_elements * self.itemsize_bytes

    @property
    def slot_elements(self) -> int:
        """Elements of the largest block of K and V together, for which a device has room."""
        rows = chunks_per_device(self.row_order) * max(len(chunk.rows) for chunk in self.all_chunks)
        return 2 * self.batch * self.kv_heads_count * rows * self.head_dim

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
    @override
    def held(self) -> RingProblem:
        return HeldRingProblem(**self.own_fields)

    @property
    @override
    def size_class(self) -> tuple[Hashable, ...]:
        return (*super().size_class, self.row_order)


@functools.lru_cache(maxsize=64)
def _chunks(order: str, devices: int, length: int) -> tuple[tuple[Chunk, ...], ...]:
    of_devices = rows_of_devices(order, devices, length)
    letters = "ab" if chunks_per_device(order) > 1 else ("",)
    return tuple(
        tuple(Chunk(device, letter, rows) for letter, rows in zip(letters, chunks))
        for device, chunks in enumerate(of_devices)
    )


class HeldRingProblem(Held, RingProblem):
    """A problem of ring attention with a tensor for each chunk in place of whole ones, as kernels get them."""
