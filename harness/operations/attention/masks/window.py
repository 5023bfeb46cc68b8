"""The sliding window: a row sees keys near its position (Beltagy et al. 2020, arXiv 2004.05150, section 3.1)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from harness.operations.attention.masks.mask import Band, Integers, Mask, Visibility
from harness.support.errors import ProblemError
from harness.support.override import override

_WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Window(Band):
    """Row i sees key j if -left <= j - (i + kv_len - q_len) <= right."""

    left: int
    """Number of visible keys before the row's position."""
    right: int
    """Number of visible keys after the row's position."""

    kind: ClassVar[str] = "window"
    spelling: ClassVar[str] = "window:LEFT[,RIGHT]"
    idea: ClassVar[str] = (
        "a row sees the LEFT keys before its position, the key at it, and the RIGHT (default: LEFT) keys after it"
    )

    def __post_init__(self) -> None:
        for name, value in (("left", self.left), ("right", self.right)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ProblemError(f"a window's {name} is {value!r}; it has to be a whole number of at least 0")

    @classmethod
    @override
    def parse(cls, parameters: str) -> Mask:
        words = [word.strip() for word in parameters.split(",")]
        if not 1 <= len(words) <= 2 or not all(_WHOLE_NUMBER.fullmatch(word) for word in words):
            raise ProblemError(
                f"mask window:{parameters} is not {cls.spelling}, numbers of keys, such as window:256 or window:256,0"
            )
        return cls(int(words[0]), int(words[-1]))

    @classmethod
    @override
    def drawn(cls, tile_keys: int) -> tuple[Mask, ...]:
        edges = sorted({0, 1, tile_keys // 2, tile_keys - 1, tile_keys, tile_keys + 1, 2 * tile_keys})
        return tuple(cls(left, right) for left in edges for right in edges)

    @override
    def visible(self, rows: Integers, keys: Integers, q_len: int, kv_len: int) -> Visibility:
        ahead = (keys - kv_len) - (rows - q_len)
        return (ahead >= -self.left) & (ahead <= self.right)

    @property
    @override
    def limits(self) -> tuple[int | None, int | None]:
        return self.left, self.right

    @property
    @override
    def text(self) -> str:
        return f"window:{self.left}" if self.left == self.right else f"window:{self.left},{self.right}"


KIND = Window
