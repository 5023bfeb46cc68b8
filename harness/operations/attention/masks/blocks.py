"""Block masks: blocks of rows and keys are on or off, so that a row does not see a run of keys.

Child et al. 2019, arXiv 1904.10509; Dao et al. 2022, arXiv 2205.14135, section 3.3 (block-sparse FlashAttention).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from harness.operations.attention.masks.array_file import ArrayFile
from harness.operations.attention.masks.mask import Integers, Mask, Scattered, Visibility
from harness.support.errors import ProblemError
from harness.support.override import override

_SIZE = r"([1-9][0-9]{0,8})x([1-9][0-9]{0,8})"
_OF_FILE = re.compile(rf"(?P<file>.+\.npy)(?:,{_SIZE})?")
_BY_SEED = re.compile(rf"{_SIZE}(?:,(?P<seed>[0-9]{{1,9}})(?P<by_head>,heads)?)?")


@dataclass(frozen=True)
class Blocks(Scattered):
    """Row i sees key j if block (i // rows, j // keys) is on."""

    size: tuple[int, int] | None
    """Rows and keys per block. None for the smallest with which the file's blocks cover the problem."""
    seed: int = 0
    """Random seed, with which each block is on with probability 1/2; ignored if there is a file."""
    file: ArrayFile | None = None
    """File that says which blocks are on; None for random blocks."""
    by_head: bool = False
    """Whether blocks differ between query heads, as in a file with three axes."""
    head: int = 0
    """Index of the head, in a mask of a single head (`of_head`)."""

    kind: ClassVar[str] = "blocks"
    spelling: ClassVar[str] = "blocks:FILE.npy[,ROWSxKEYS]"
    idea: ClassVar[str] = (
        "blocks of ROWS x KEYS that are on or off, a boolean array of (rows of blocks, blocks in a row), or of "
        "(heads, ...); or blocks:ROWSxKEYS[,SEED[,heads]] for random blocks, with `heads` different ones in each head"
    )

    @classmethod
    @override
    def parse(cls, parameters: str) -> Mask:
        words = parameters.strip()
        if found := _BY_SEED.fullmatch(words):
            return cls((int(found[1]), int(found[2])), int(found["seed"] or 0), by_head=found["by_head"] is not None)
        if found := _OF_FILE.fullmatch(words):
            size = None if found[2] is None else (int(found[2]), int(found[3]))
            needed = "a boolean array of (rows of blocks, blocks) or (heads, rows of blocks, blocks)"
            file = ArrayFile.read(cls.kind, found["file"], _is_grid, needed)
            return cls(size, file=file, by_head=len(file.shape) == 3)
        raise ProblemError(
            f"mask blocks:{parameters} is not {cls.spelling}, such as blocks:mask.npy,64x32, and not "
            "blocks:ROWSxKEYS,SEED, such as blocks:64x32,7 or blocks:64x32,7,heads"
        )

    @classmethod
    @override
    def drawn(cls, tile_keys: int) -> tuple[Mask, ...]:
        t = tile_keys
        few, half = max(1, t - 1), max(1, t // 2)
        # Most edges lie within tiles, because sizes that divide tiles would hide errors in the position of blocks.
        sizes = (
            (2 * t, t), (7, 5), (t + 1, few), (3 * t + 2, 2 * t + 1), (few, t + 1), (t, half), (5, 3 * t), (1, t),
            (2 * t + 3, 1),
        )  # fmt: skip
        of_all = tuple(cls(size, number) for number, size in enumerate(dict.fromkeys(sizes)))
        return (*of_all, *(cls(mask.size, mask.seed, by_head=True) for mask in of_all[:4]))

    def size_for(self, q_len: int, kv_len: int) -> tuple[int, int]:
        """Return the rows and keys per block in a problem of these sizes."""
        if self.size is not None:
            return self.size
        assert self.file is not None
        rows, columns = self.file.shape[-2:]
        return -(-q_len // rows), -(-kv_len // columns)

    def array_shape(self, q_len: int, kv_len: int) -> tuple[int, int]:
        """Return the number of blocks along rows and along keys in a problem of these sizes."""
        rows, keys = self.size_for(q_len, kv_len)
        return -(-q_len // rows), -(-kv_len // keys)

    def array(self, heads: int, q_len: int, kv_len: int) -> Visibility:
        """Return which blocks are on, (heads or 1, blocks along rows, blocks along keys), an input of kernels."""
        rows, columns = (np.arange(extent, dtype=np.int64) for extent in self.array_shape(q_len, kv_len))
        masks = [self.of_head(head) for head in range(heads)] if self.by_head else [self]
        return np.stack([mask._are_on(rows[:, None], columns[None, :]) for mask in masks])

    @property
    @override
    def tells_heads_apart(self) -> bool:
        return self.by_head

    @override
    def of_head(self, number: int) -> Blocks:
        return dataclasses.replace(self, by_head=False, head=number) if self.by_head else self

    @property
    def heads(self) -> int | None:
        """Number of query heads in its file; None if it applies to any number."""
        return self.file.shape[0] if self.file is not None and self.by_head else None

    @override
    def visible(self, rows: Integers, keys: Integers, q_len: int, kv_len: int) -> Visibility:
        block_rows, block_keys = self.size_for(q_len, kv_len)
        return self._are_on(rows // block_rows, keys // block_keys)

    def _are_on(self, i: Integers, j: Integers) -> Visibility:
        if self.file is not None:
            of_head = self.file.array if self.file.array.ndim == 2 else self.file.array[self.head]
            on: Visibility = of_head[i, j]
            return on
        with np.errstate(over="ignore"):
            return _is_odd(
                _mixed(_mixed(np.uint64(self.seed + (self.head << 32)) + i.astype(np.uint64)) + j.astype(np.uint64))
            )

    @override
    def why_invalid(self, batch: int, q_len: int, kv_len: int) -> str | None:
        if self.file is None:
            return None
        needed = self.array_shape(q_len, kv_len)
        if needed == self.file.shape[-2:]:
            return None
        rows, keys = self.size_for(q_len, kv_len)
        return (
            f"{self.file.path} has {_by(self.file.shape[-2:])} blocks; of {rows} x {keys} each, {q_len} rows and "
            f"{kv_len} keys have {_by(needed)}: give the size of a block, as in blocks:{self.file.path},ROWSxKEYS"
        )

    @override
    def simplified(self) -> Iterator[Mask]:
        """Yield masks with fewer rows and keys per block, or another seed."""
        if self.file is None and self.size is not None:
            rows, keys = self.size
            smaller = {(64, 32), (rows, 1), (1, keys), (rows // 2 or 1, keys), (rows, keys // 2 or 1)}
            if self.by_head:
                yield dataclasses.replace(self, by_head=False)
            yield from (dataclasses.replace(self, size=size) for size in sorted(smaller - {self.size}))
            yield from (dataclasses.replace(self, seed=seed) for seed in range(min(self.seed, 4)))

    @property
    @override
    def text(self) -> str:
        size = "" if self.size is None else f"{self.size[0]}x{self.size[1]}"
        if self.file is None:
            return f"blocks:{size},{self.seed}{',heads' if self.by_head else ''}"
        return f"blocks:{self.file.path}{size and ','}{size}"


def _by(shape: tuple[int, ...]) -> str:
    return f"{shape[0]:,} x {shape[1]:,}"


def _mixed(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer (Steele et al. 2014, doi:10.1145/2660193.2660195): a pseudorandom hash."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed


def _is_odd(x: np.ndarray) -> Visibility:
    odd: Visibility = (x & np.uint64(1)).astype(np.bool_)
    return odd


def _is_grid(array: np.ndarray) -> bool:
    return array.dtype == np.bool_ and array.ndim in (2, 3)


KIND = Blocks
