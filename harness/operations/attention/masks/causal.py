"""The causal mask: a row sees the keys up to its position, aligned bottom-right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness.operations.attention.masks.mask import Band, Integers, Mask, Visibility
from harness.support.errors import ProblemError
from harness.support.override import override


@dataclass(frozen=True)
class Causal(Band):
    """Row i sees key j if j <= i + kv_len - q_len."""

    kind: ClassVar[str] = "causal"
    spelling: ClassVar[str] = "causal"
    idea: ClassVar[str] = "row i sees key j if j <= i + kv_len - q_len"

    @classmethod
    @override
    def parse(cls, parameters: str) -> Mask:
        if parameters:
            raise ProblemError(f"mask causal has no parameters, but is given {parameters!r}")
        return cls()

    @classmethod
    @override
    def drawn(cls, tile_keys: int) -> tuple[Mask, ...]:
        return (cls(),)

    @override
    def visible(self, rows: Integers, keys: Integers, q_len: int, kv_len: int) -> Visibility:
        # Counted from the end: the number of hidden keys of a row equals the number of rows after it.
        return (kv_len - keys) > (q_len - 1 - rows)

    @property
    @override
    def limits(self) -> tuple[int | None, int | None]:
        return None, 0

    @property
    @override
    def text(self) -> str:
        return "causal"


KIND = Causal
