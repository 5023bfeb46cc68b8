"""Defines a problem of tree attention: one of attention, whose keys are divided over devices that all have Q."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import ClassVar

from harness.model.problem import ELEMENT_BYTES, option
from harness.operations._across_devices.order import CONTIGUOUS, mask_between, rows_of_devices
from harness.operations._across_devices.problem import Chunk, DividedProblem, Held
from harness.operations.attention.masks import NO_MASK
from harness.operations.attention.problem import Problem
from harness.support.errors import ProblemError
from harness.support.override import override

FLOAT32_BYTES = ELEMENT_BYTES["float32"]
SLOTS = 2
"""Partial results for which a device has room: one is merged while the next one arrives."""


@dataclass(frozen=True, kw_only=True)
class TreeProblem(DividedProblem):
    """O = softmax(scale * Q K^T + mask) V of the last rows of a sequence, whose keys are divided over devices.

    All arrays are those of attention. Each device has all rows of Q and a run of the rows of K and V. Device 0 ends
    with O and lse. Raises `ProblemError` if a field is invalid.
    """

    operation: ClassVar[str] = "tree-attention"
    in_words: ClassVar[str] = "tree attention"

    q_len: int = option(8, "rows of Q, the last ones of the sequence")
    """Query rows per head, on every device."""
    kv_len: int = option(1024, "rows of K and V")
    """Key rows per head, over all devices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kv_len < self.devices:
            raise ProblemError(f"kv_len is {self.kv_len}; {self.devices} devices need at least a row each")
        if self.causal and self.q_len > self.kv_len:
            raise ProblemError(f"q_len is {self.q_len} and kv_len {self.kv_len}; some rows would see no key")

    @property
    @override
    def chunks(self) -> tuple[tuple[Chunk, ...], ...]:
        """The keys of each device."""
        return _chunks(self.devices, self.kv_len)

    @override
    def chunks_of(self, tensor: str) -> tuple[Chunk, ...]:
        """Return the chunks of a tensor: Q is whole on each device, O and lse are on device 0."""
        if tensor in ("K", "V"):
            return super().chunks_of(tensor)
        rows = range(self.q_len)
        return tuple(Chunk(device, "", rows) for device in range(self.devices if tensor == "Q" else 1))

    def block(self, keys: Chunk) -> Problem:
        """Return the problem of attention of all rows with a chunk of the keys, one of which the last row sees."""
        rows = range(self.diagonal, self.kv_len)
        mask = mask_between(rows, keys.rows) if self.causal else NO_MASK
        assert mask is not None
        return dataclasses.replace(self.whole, kv_len=len(keys.rows), mask=mask)

    @property
    def partial_bytes(self) -> int:
        """Bytes of a merged O, in float32, and its lse."""
        return self.batch * self.heads * self.q_len * (self.head_dim + 1) * FLOAT32_BYTES

    @property
    @override
    def most_received_bytes(self) -> int | None:
        """Two partial results that were merged and two that were not, whose O is in the problem's dtype."""
        return SLOTS * (self.partial_bytes + self._own_bytes)

    @property
    def _own_bytes(self) -> int:
        return self.batch * self.heads * self.q_len * (self.head_dim * self.itemsize_bytes + FLOAT32_BYTES)

    @override
    def most_device_bytes(self, device: int) -> int | None:
        """Q, O and lse, the device's own keys and its partial result, a merged one, and what it may receive."""
        assert self.most_received_bytes is not None
        return 3 * self._own_bytes + self.partial_bytes + self.kv_bytes(device) + self.most_received_bytes

    @property
    @override
    def held(self) -> TreeProblem:
        return HeldTreeProblem(**self.own_fields)


@functools.lru_cache(maxsize=64)
def _chunks(devices: int, length: int) -> tuple[tuple[Chunk, ...], ...]:
    of_devices = rows_of_devices(CONTIGUOUS, devices, length)
    return tuple((Chunk(device, "", rows),) for device, (rows,) in enumerate(of_devices))


class HeldTreeProblem(Held, TreeProblem):
    """A problem of tree attention with a tensor for each part that a device has, as kernels get them."""
