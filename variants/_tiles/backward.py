"""What the algorithms of the backward pass have in common: how their tiles are chosen, compiled in and counted.

Tiles are named as in the papers, Br query rows and Bc keys. A block that owns keys is compiled with tiles.cuh the other
way round, see backward.cuh.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness import Numerics, Plan, Problem, Registry, Traffic
from variants._features import SPAN_FEATURES, factor, mirrored_sequence_extents, start_bytes, term_bytes
from variants._tiles import SHARED_BYTES, THREADS_X, THREADS_Y, WARPS, Tile, blocks, unsupported
from variants._tiles.registration import Kernels, register_languages
from variants._tiles.schedule import FLOAT32_BYTES, Schedule, Sizes
from variants._tiles.sectors import Integers
from variants._tiles.space import LARGEST_PART, P_floats, P_rows, rows_floats
from variants._tiles.visits import Visits

NUMERICS = Numerics(scores="float32", weights="float32", functions="__expf", tanh="accurate", sums="nearest")
"""Numerics of algorithms that round only their outputs to 16 bits."""
CHOICES = (8, 16, 32, 64)
"""Sizes of a tile to choose from, in rows and in keys."""


BACKWARD = (("_tiles", "bias_gradient.cuh"), ("_tiles", "backward.cuh"))
"""Headers of CUDA kernels."""


def turned(tile: Tile) -> Tile:
    """Return the tile with rows and keys exchanged, which tiles.cuh expects if a block owns keys."""
    return Tile(Br=tile.Bc, Bc=tile.Br)


def default_backward_tile(head_dim: int) -> Tile:
    """The tile of algorithms that keep Q_i, dO_i, K_j, V_j, P and dS on chip, which fits `SHARED_BYTES`."""
    side = 32 if head_dim <= 64 else 16 if head_dim <= 128 else 8
    return Tile(side, side)


def backward_tiles(
    head_dim: int,
    default: Tile,
    shared_floats: Callable[[int, Tile], int],
    spans: bool = False,
    shared_bytes: int = SHARED_BYTES,
) -> list[dict[str, int]]:
    """The default first, then every other tile that fits, Br and Bc ascending.

    `shared_floats(head_dim, tile)` is the shared memory of a block in floats, and `shared_bytes` its limit; with
    `spans`, the runs of rows or keys are stored there, too.
    """

    def fits(tile: Tile) -> bool:
        keys, rows = blocks(tile.Bc, THREADS_Y), blocks(tile.Br, THREADS_X)
        part = (2 * keys + blocks(tile.Br, THREADS_Y)) * blocks(head_dim, THREADS_X) + 2 * keys * rows
        kept = 2 * max(P_rows(tile), P_rows(turned(tile))) if spans else 0
        return part <= LARGEST_PART and (shared_floats(head_dim, tile) + kept) * FLOAT32_BYTES <= shared_bytes

    chosen = [default, *(t for Br in CHOICES for Bc in CHOICES if (t := Tile(Br, Bc)) != default and fits(t))]
    return [{"Br": tile.Br, "Bc": tile.Bc} for tile in chosen]


def owning_keys_floats(head_dim: int, tile: Tile, v_width: int | None = None, room_for_dQ: bool = False) -> int:
    """Shared memory of a block that owns keys: K_j, V_j, Q_i, dO_i, P, dS, and lse and D of every row.

    Rows of V and dO have `v_width` elements, or `head_dim` if it is None. `room_for_dQ`: dQ_i fits where dO_i is.
    """
    of_V = v_width or head_dim
    of_dO = max(rows_floats(tile.Br, width) for width in ((of_V, head_dim) if room_for_dQ else (of_V,)))
    of_rows = rows_floats(tile.Bc + tile.Br, head_dim) + rows_floats(tile.Bc, of_V) + of_dO
    return of_rows + 2 * P_floats(turned(tile)) + 2 * tile.Br


def key_grid(problem: Problem, tile: Tile) -> tuple[int, int, int]:
    """The grid of a kernel with a block per tile of keys, whose heads are those of K and V."""
    return blocks(problem.kv_len, tile.Bc), problem.kv_heads_count, problem.batch


def key_grid_across(problem: Problem, tile: Tile) -> tuple[int, int, int]:
    """The grid of a kernel with a block per tile of keys, heads along x: the first keys of all heads start first.

    With unpadded sequences, it has blocks for the one with the most keys; the others do without some.
    """
    sequences, keys = mirrored_sequence_extents(problem)
    return problem.kv_heads_count, blocks(keys, tile.Bc), sequences


class BackwardSchedule(Schedule):
    """The bytes of the backward pass's tiles; sums over batch and heads."""

    @functools.cached_property
    def visited(self) -> npt.NDArray[np.bool_]:
        """(S, T_r, T_c): which rows and keys meet, in blocks that own either of them."""
        visited: npt.NDArray[np.bool_] = Visits(self).visited[:, 0]
        return visited

    @property
    def visits(self) -> Integers:
        """(S, T_r): J_i, how many tiles of keys row block i meets."""
        return super().visits if self.problem.mask.is_run else self.visited.sum(axis=2)

    @property
    def key_visits(self) -> Integers:
        """(S, T_c): how many row blocks of one query head tile j of keys meets."""
        return super().key_visits if self.problem.mask.is_run else self.visited.sum(axis=1)

    @property
    def lists_of_keys_traffic(self) -> tuple[int, int]:
        """Bytes read and written because tiles of rows are listed for blocks that own keys; 0 where rows see runs.

        A block reads how many there are and the first one, and each other one once per query head.
        """
        p, visits = self.problem, self.key_visits
        alike = p.batch * p.kv_heads_count // len(visits)
        reads = alike * int(np.where(visits > 0, 2 + p.group * (visits - 1), 1).sum())
        return Visits(self, mirrored=True).mask_traffic(WARPS, reads)

    @property
    def lists_of_rows_traffic(self) -> tuple[int, int]:
        """Bytes read and written because tiles of keys are listed for blocks that own rows; 0 where rows see runs."""
        p = self.problem
        alike = p.batch * p.heads // len(self.visits)
        return Visits(self).mask_traffic(WARPS, self.owners + alike * int(self.visits.sum()))

    @property
    def Q_bytes(self) -> Integers:
        """(T_r,): bytes of Q_i, O_i, dO_i or dQ_i, in the problem's dtype."""
        return self.row_block_bytes(self.problem.head_dim, self.problem.itemsize_bytes)

    @property
    def running_bytes(self) -> Integers:
        """(T_r,): bytes of dQ_i in float32."""
        return self.row_block_bytes(self.problem.head_dim, FLOAT32_BYTES)

    @property
    def stat_bytes(self) -> Integers:
        """(T_r,): bytes of lse or D of row block i."""
        return self.row_block_bytes(1, FLOAT32_BYTES)

    @property
    def K_bytes(self) -> Integers:
        """(T_c,): bytes of K_j, V_j, dK_j or dV_j, once for each key/value head."""
        return self.key_tile_bytes() // self.problem.group

    def own_key_bytes(self, name: str) -> Integers:
        """(T_c,): bytes of tile j of K, V, dK or dV, once for each key/value head."""
        moved: Integers = np.sum(self._moved(name, self.first_keys, self._keys, None, 1), axis=1)
        return moved

    @property
    def key_and_value_bytes(self) -> Integers:
        """(S, T_c): bytes of K_j and V_j, once for every query head."""
        return np.sum(self.key_and_value_bytes_of_heads(), axis=1)

    @property
    def seen_K_and_V_bytes(self) -> Integers:
        """(T_c,): bytes of K_j and V_j, once for each key/value head, if some row sees one of the keys, else 0."""
        return (self.key_visits > 0) * (self.own_key_bytes("K") + self.own_key_bytes("V"))

    @property
    def dK_and_dV_bytes(self) -> int:
        """Bytes of all dK_j and dV_j, once for each key/value head."""
        return int(self.own_key_bytes("dK").sum() + self.own_key_bytes("dV").sum())

    @property
    def seen_K_bytes(self) -> Integers:
        """(T_c,): bytes of K_j, V_j, dK_j or dV_j if some row sees one of the keys, else 0."""
        return (self.key_visits > 0) * self.K_bytes

    @property
    def key_limit_bytes(self) -> Integers:
        """(S, T_c): bytes of reading the first rows and the ends of K_j once for each key/value head.

        0 if the mask is a band, as in `limit_bytes`.
        """
        return self._limits_of(self.problem.kv_heads_count, self.problem.kv_len, self.first_keys, self._keys)

    @property
    def term_bytes(self) -> int:
        """Bytes of score terms' inputs with an element per head, read by all blocks that own keys."""
        return term_bytes(self.problem, WARPS * len(self.first_keys) * self.problem.batch * self.problem.heads)


def backward_schedules(problem: Problem, tile: Sizes) -> tuple[BackwardSchedule, ...]:
    """Return the tiles of each unpadded sequence; of the whole problem if it has no such sequences."""
    if problem.sequences is None:
        return (BackwardSchedule(problem, tile),)
    return tuple(BackwardSchedule(problem, tile, number) for number in range(problem.sequences.sequence_count))


def mirrored_start_bytes(schedules: Sequence[BackwardSchedule], warps: int = WARPS) -> int:
    """Return bytes of reading where sequences begin by the blocks of `key_grid_across`; 0 if all are equally long."""
    p, tile = schedules[0].problem, schedules[0].tile
    sequences, keys = mirrored_sequence_extents(p)
    with_keys = p.kv_heads_count * sum(len(schedule.first_keys) for schedule in schedules)
    return start_bytes(p, warps, p.kv_heads_count * sequences * blocks(keys, tile.Bc), with_keys)


class Claims(NamedTuple):
    """Bytes (read, written) of each launch of an algorithm whose dQ is added in memory."""

    prepare: tuple[int, int]
    of_keys: tuple[int, int]
    rounding: tuple[int, int]
    of_sinks: tuple[int, int]


def sum_of_launches(claims: Claims) -> Traffic:
    """Return the bytes of all launches."""
    read_bytes, write_bytes = (int(sum(each)) for each in zip(*claims))
    return Traffic(read_bytes, write_bytes)


def register_backward(
    registry: Registry,
    algorithm: str,
    idea: str,
    languages: Mapping[str, Kernels],
    plan: Callable[[Problem, Kernels, Any], Plan],
    claim: Callable[[Problem, Any], Traffic],
    tiles: Callable[[Problem], Sequence[Mapping[str, int]]],
    *,
    numerics: Numerics = NUMERICS,
    deterministic: bool = True,
    takes: tuple[str, ...] = SPAN_FEATURES,
    supports: Callable[[Problem], str | None] = unsupported,
) -> None:
    """Add `<algorithm>-<language>` for each of `languages`, as variants of attention-backward."""
    register_languages(
        registry,
        algorithm,
        idea,
        languages,
        plan,
        claim,
        tiles,
        numerics,
        operation="attention-backward",
        deterministic=deterministic,
        takes=takes,
        supports=supports,
    )


def sizes(problem: Problem) -> tuple[Any, ...]:
    """Arguments of kernels: (q_len, kv_len, group, tau)."""
    return np.int32(problem.q_len), np.int32(problem.kv_len), np.int32(problem.group), np.float32(problem.tau)


def score_tau(problem: Problem) -> np.float32:
    """Argument of kernels: the factor on products q.k before score terms, tau, or tau / cap if tanh follows."""
    return np.float32(factor(problem))
