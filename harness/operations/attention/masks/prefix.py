"""The prefix mask: causal, except that all rows see the first keys (Raffel et al. 2019, arXiv 1910.10683, 3.2.1)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from harness.operations.attention.masks.mask import Integers, Mask, Visibility
from harness.support.errors import ProblemError
from harness.support.override import override

_WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Prefix(Mask):
    """Row i sees key j if j < keys or j <= i + kv_len - q_len. `prefix:0` equals the causal mask."""

    keys: int
    """Number of keys of the prefix; beyond kv_len, all keys."""

    kind: ClassVar[str] = "prefix"
    spelling: ClassVar[str] = "prefix:KEYS"
    implied_by: ClassVar[tuple[str, ...]] = ("causal",)
    idea: ClassVar[str] = "a row sees the first KEYS keys, and all keys up to its position"

    def __post_init__(self) -> None:
        if isinstance(self.keys, bool) or not isinstance(self.keys, int) or self.keys < 0:
            raise ProblemError(f"a prefix has {self.keys!r} keys; it has to be a whole number of at least 0")

    @classmethod
    @override
    def parse(cls, parameters: str) -> Mask:
        if not _WHOLE_NUMBER.fullmatch(parameters.strip()):
            raise ProblemError(f"mask prefix:{parameters} is not {cls.spelling}, a number of keys, such as prefix:64")
        return cls(int(parameters))

    @classmethod
    @override
    def drawn(cls, tile_keys: int) -> tuple[Mask, ...]:
        t = tile_keys
        edges = (1, t // 2, t - 1, t, t + 1, 2 * t - 1, 2 * t + 1, 3 * t, 10**6)
        return tuple(cls(keys) for keys in dict.fromkeys(edges))

    @override
    def visible(self, rows: Integers, keys: Integers, q_len: int, kv_len: int) -> Visibility:
        # Counted from the end, as in the causal mask.
        return (keys < self.keys) | ((kv_len - keys) > (q_len - 1 - rows))

    @override
    def span(self, rows: Integers, q_len: int, kv_len: int) -> tuple[Integers, Integers]:
        place = np.asarray(rows, dtype=np.int64) + (kv_len - q_len)
        return np.zeros_like(place), np.clip(place + 1, min(self.keys, kv_len), kv_len)

    @property
    @override
    def text(self) -> str:
        return f"prefix:{self.keys}"


KIND = Prefix
