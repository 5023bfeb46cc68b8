"""Defines a problem of the gradients of ring attention: one of gradients, and how its rows are divided over devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness.model.problem import ELEMENT_BYTES
from harness.operations._across_devices.problem import Held
from harness.operations.attention_backward.problem import BackwardProblem
from harness.operations.ring_attention.problem import SLOTS, RingProblem
from harness.support.override import override

FLOAT32_BYTES = ELEMENT_BYTES["float32"]
FRAGMENT_ROWS, FRAGMENT_COLUMNS = 16, 8
"""Extents of what tensor cores add to dQ at once: dQ in float32 may be kept in whole ones."""
STATS_ROWS = 128
"""Rows of the tiles in which numbers per row may be kept: copies by TMA want whole ones."""


@dataclass(frozen=True, kw_only=True)
class RingBackwardProblem(RingProblem):
    """dQ, dK and dV of O = softmax(scale * Q K^T + mask) V, divided over devices by rows.

    All arrays are those of `attention-backward`, of which each device holds the rows that `order` assigns to it: those
    of Q, K, V, O, dO and lse when it begins, those of dQ, dK and dV when it ends. Raises `ProblemError` if a field is
    invalid.
    """

    operation: ClassVar[str] = "ring-attention-backward"
    in_words: ClassVar[str] = "gradients of ring attention"

    @property
    @override
    def whole(self) -> BackwardProblem:
        """The problem of gradients that the devices compute together."""
        return BackwardProblem(**self.sizes)

    @property
    @override
    def held(self) -> RingProblem:
        return HeldRingBackwardProblem(**self.own_fields)

    @property
    @override
    def most_received_bytes(self) -> int | None:
        """Two visiting blocks of K and V, and two of dK and dV in float32, of the largest size."""
        return SLOTS * self.slot_elements * (self.itemsize_bytes + FLOAT32_BYTES)

    @override
    def most_device_bytes(self, device: int) -> int | None:
        """The device's own rows of all tensors, what it may receive, dK and dV of a block, and float32 sums.

        The sums are dQ, in whole fragments of tensor cores, and two numbers per row besides lse, in whole tiles.
        """
        heads, lengths = self.batch * self.heads, [len(chunk.rows) for chunk in self.chunks[device]]
        elements, received_bytes = heads * sum(lengths) * self.head_dim, self.most_received_bytes
        assert received_bytes is not None
        own_bytes = 4 * elements * self.itemsize_bytes + heads * sum(lengths) * FLOAT32_BYTES  # Q, O, dO, dQ; lse
        own_bytes += 2 * self.kv_bytes(device)  # K, V; dK, dV
        rows = sum(_whole(length, FRAGMENT_ROWS) for length in lengths)
        stats = 2 * sum(_whole(length, STATS_ROWS) for length in lengths)
        sum_bytes = heads * (rows * _whole(self.head_dim, FRAGMENT_COLUMNS) + stats) * FLOAT32_BYTES
        return own_bytes + received_bytes + self.slot_elements * self.itemsize_bytes + sum_bytes


def _whole(extent: int, unit: int) -> int:
    return -(-extent // unit) * unit


class HeldRingBackwardProblem(Held, RingBackwardProblem):
    """Such a problem with a tensor for each chunk in place of whole ones, as kernels get them."""
