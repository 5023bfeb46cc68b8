"""Q, K and V -> e4m3, one scale per head: what fa3-fp8 launches first, and how many bytes that moves.

Both launches have a block for each run of 128 rows of a head. Bytes per head, at the `sectors` level, X those of its
elements, R its runs:

    first    X read                                                    32 R written, a number per run
    second   X read; of V, pieces of 16 bytes in the order of keys that products want, so that head_dims that make no
             whole sectors read some twice; R times the head's R numbers
                                                                       rows padded to 32 bytes, and 32 for the scale
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness import Buffer, Launch, Problem, Traffic
from variants._hopper import padded
from variants._hopper.e4m3 import key_places
from variants._tiles import blocks
from variants._tiles.sectors import LANES, SECTOR_BYTES, Integers, run_bytes

RUN = 128
"""Rows of a head that a block takes."""
THREADS = 256
PIECE = 8
"""Elements of 16 bits that a thread reads at once."""
NOTHING = -1
"""Read by a lane."""
INT32_BYTES = 4


@dataclass(frozen=True)
class _Tensor:
    heads: int
    length: int
    is_V: bool = False

    @property
    def runs(self) -> int:
        """Number of runs per head."""
        return int(blocks(self.length, RUN))


def _tensors(p: Problem) -> tuple[_Tensor, _Tensor, _Tensor]:
    kv_heads = p.batch * p.kv_heads_count
    return _Tensor(p.batch * p.heads, p.q_len), _Tensor(kv_heads, p.kv_len), _Tensor(kv_heads, p.kv_len, is_V=True)


def _runs(p: Problem) -> int:
    return sum(tensor.heads * tensor.runs for tensor in _tensors(p))


def buffers(p: Problem) -> tuple[Buffer, ...]:
    """What the launches leave: e4m3 as bytes, V transposed, and the scales' exponents; and what the first tells the
    second."""
    Q, K, _ = _tensors(p)
    D = padded(p.head_dim)
    return (
        Buffer("largest_of_runs", (_runs(p),), "int32"),
        Buffer("scales", (Q.heads + 2 * K.heads,), "int32"),
        Buffer("Q_e4m3", (Q.heads, Q.length, D), "uint8"),
        Buffer("K_e4m3", (K.heads, K.length, D), "uint8"),
        Buffer("V_e4m3", (K.heads, p.head_dim, key_places(p)), "uint8"),
    )


def launches(p: Problem, largest_magnitudes: Any, round_factors: Any, sign: np.float32) -> tuple[Launch, Launch]:
    """Both; Q is multiplied by `sign`."""
    Q, K, _ = _tensors(p)
    sizes = tuple(np.int32(n) for n in (p.q_len, p.kv_len, Q.heads, K.heads, p.head_dim))
    grid, block = (_runs(p),), (THREADS,)
    rounded = ("scales", "Q_e4m3", "K_e4m3", "V_e4m3")
    return (
        Launch(largest_magnitudes, grid, block, ("Q", "K", "V", "largest_of_runs", *sizes)),
        Launch(round_factors, grid, block, ("Q", "K", "V", "largest_of_runs", *rounded, *sizes, sign)),
    )


def bytes_of_launches(p: Problem) -> Traffic:
    """The bytes above."""
    read = written = before = 0
    for tensor in _tensors(p):
        first_rows = np.arange(0, tensor.length, RUN, dtype=np.int64)
        rows, heads = np.minimum(RUN, tensor.length - first_rows), np.arange(tensor.heads)[:, None]
        first = (heads * tensor.length + first_rows) * p.head_dim
        read += int(run_bytes(first, rows * p.head_dim, p.itemsize_bytes, PIECE).sum())
        # Rows of pieces of 16 bytes: a run begins at a sector's beginning or in its middle.
        kinds, counts = np.unique(
            np.stack([a.reshape(-1) for a in np.broadcast_arrays(rows, first * p.itemsize_bytes % SECTOR_BYTES)]),
            axis=1,
            return_counts=True,
        )
        again = _transposed_bytes if tensor.is_V else _rounded_bytes
        read += sum(int(n) * again(p.head_dim, int(r), int(b)) for (r, b), n in zip(kinds.T, counts))
        # Numbers of all heads of all tensors lie side by side.
        places = before + heads * tensor.runs
        read += tensor.runs * int(run_bytes(places, tensor.runs, INT32_BYTES).sum())
        before += tensor.heads * tensor.runs
        written += SECTOR_BYTES * tensor.heads * (tensor.runs + 1)
        written += tensor.heads * (p.head_dim * key_places(p) if tensor.is_V else tensor.length * padded(p.head_dim))
    return Traffic(read, written)


@functools.cache
def _rounded_bytes(head_dim: int, rows: int, begins: int) -> int:
    """Bytes of reading a run of Q or K that begins at byte `begins` of a sector, in pieces of 16 bytes per thread.

    Threads go through padded rows, and those at padding read nothing.
    """
    pieces, padded_pieces = head_dim // PIECE, padded(head_dim) // PIECE
    row, piece = np.divmod(np.arange(rows * padded_pieces), padded_pieces)
    return _sectors_bytes(np.where(piece < pieces, row * pieces + piece, NOTHING), begins)


@functools.cache
def _transposed_bytes(head_dim: int, rows: int, begins: int) -> int:
    """Bytes of reading a run of V: a thread reads one piece of each of four keys that it stores side by side."""
    pieces = head_dim // PIECE
    word, piece = np.divmod(np.arange(RUN // 4 * pieces), pieces)
    total = 0
    for place in range(4):
        key = word // 4 * 16 + place // 2 * 8 + word % 4 * 2 + place % 2
        total += _sectors_bytes(np.where(key < rows, key * pieces + piece, NOTHING), begins)
    return total


def _sectors_bytes(pieces: Integers, begins: int) -> int:
    """Bytes of the sectors of 32-lane requests, in which each lane reads a piece of 16 bytes or `NOTHING`."""
    requests = np.full((blocks(len(pieces), LANES), LANES), NOTHING)
    requests.reshape(-1)[: len(pieces)] = pieces
    sectors = np.sort(np.where(requests == NOTHING, NOTHING, (begins + 16 * requests) // SECTOR_BYTES), axis=1)
    is_new = np.diff(sectors, axis=1, prepend=NOTHING) != 0
    return int(SECTOR_BYTES * np.count_nonzero(is_new & (sectors != NOTHING)))
