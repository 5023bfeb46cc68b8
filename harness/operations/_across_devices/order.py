"""Orders: which rows of a sequence each device holds, and which keys of another device's rows they see.

With a causal mask, a device that holds the first rows has the least to do. Two orders give all devices equal work:
striped (Brandon et al. 2023, arXiv 2311.09431) and zigzag, in which a device holds a chunk from the
beginning and one from the end, as context parallelism of Llama 3 does (arXiv 2407.21783, section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from harness.operations.attention.masks import NO_MASK, Band, Integers, Mask, Visibility, parse_mask
from harness.support.override import override

CONTIGUOUS, STRIPED, ZIGZAG = "contiguous", "striped", "zigzag"
ORDERS: Mapping[str, str] = {
    CONTIGUOUS: "a run of rows per device",
    STRIPED: "every N-th row",
    ZIGZAG: "two of 2 N chunks: one from the beginning, and the one as far from the end",
}
"""Each order, and what a device holds in it."""


def chunks_per_device(order: str) -> int:
    """Return how many chunks of rows a device holds."""
    return 2 if order == ZIGZAG else 1


def rows_of_devices(order: str, devices: int, length: int) -> tuple[tuple[range, ...], ...]:
    """Return the chunks of rows of each device. Lengths that are no multiple make chunks whose sizes differ by one."""
    if order == STRIPED:
        return tuple((range(device, length, devices),) for device in range(devices))
    count = devices * chunks_per_device(order)
    pieces = tuple(range(piece * length // count, (piece + 1) * length // count) for piece in range(count))
    if order == CONTIGUOUS:
        return tuple((piece,) for piece in pieces)
    return tuple((pieces[device], pieces[count - 1 - device]) for device in range(devices))


class CausalPart(Mask):
    """The causal mask of a sequence, as it appears in a part of it. It is no option, and no campaign draws it."""

    kind: ClassVar[str] = "causal"
    spelling: ClassVar[str] = "causal"

    @classmethod
    @override
    def parse(cls, parameters: str) -> Mask:
        raise NotImplementedError(parameters)

    @classmethod
    @override
    def drawn(cls, tile_keys: int) -> tuple[Mask, ...]:
        return ()


@dataclass(frozen=True)
class ShiftedCausal(CausalPart, Band):
    """Row i sees key j if j <= i + kv_len - q_len + shift: between two chunks of a sequence."""

    shift: int

    idea: ClassVar[str] = "row i sees key j if j <= i + kv_len - q_len + shift"

    @override
    def visible(self, rows: Integers, keys: Integers, q_len: int, kv_len: int) -> Visibility:
        return keys <= rows + (kv_len - q_len + self.shift)

    @property
    @override
    def limits(self) -> tuple[int | None, int | None]:
        return None, self.shift

    @property
    @override
    def text(self) -> str:
        return f"causal{self.shift:+d}"


def mask_between(rows: range, keys: range) -> Mask | None:
    """Return what rows at these places of a sequence see of keys at those under a causal mask; None if nothing.

    Both have the same step t. Row r0 + a t sees key k0 + b t if b - a <= (r0 - k0) / t.
    """
    most = (rows.start - keys.start) // rows.step
    if most >= len(keys) - 1:
        return NO_MASK
    if most <= -len(rows):
        return None
    shift = most - (len(keys) - len(rows))
    return ShiftedCausal(shift) if shift else parse_mask("causal")
