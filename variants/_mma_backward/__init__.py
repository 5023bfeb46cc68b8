"""Gradients of attention on tensor cores: the launches that its algorithms share, and the bytes that move."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from harness import Launch, Numerics, Problem
from variants import _features as features
from variants._features import Feature, Files, arguments, declarations, has_spans, stored
from variants._mma import FRAGMENT, LOG2_E, MmaTile, tile_copy
from variants._mma.rawkernel import COMMON_WITH_TILES, STRIDED
from variants._mma_backward.order import order
from variants._mma_backward.stats import stats
from variants._mma_backward.tile import BackwardMmaTile, row_bytes
from variants._tiles import Tile, blocks
from variants._tiles.backward import BackwardSchedule, key_grid_across
from variants._tiles.grids import grid_side_by_side
from variants._tiles.schedule import FLOAT32_BYTES, Schedule, Sizes
from variants._tiles.sectors import SECTOR_BYTES, Integers
from variants._tiles.tile_copies import TileCopy
from variants._tiles.visits import Booleans, Visits, rule_of, tile_order

NUMERICS = Numerics(scores="float32", weights="problem", functions="fast", sums="truncated")
"""P and dS are rounded to 16 bits, as tensor cores take them; dS is of P before that. Sums are cut off."""
FOLDER = "_mma_backward"
FRAGMENTS: Files = (("_features", "dropout_fragments.cuh"), (FOLDER, "not_finite.cuh"), (FOLDER, "anew.cuh"))
"""Parts of kernels that compute dS."""
OWNING_KEYS: Files = tuple((FOLDER, f"{part}.cuh") for part in ("shares", "seen", "turns", "products", "scoring"))
"""Parts of keys.cu besides `FRAGMENTS`."""
END_ROWS, END_WARPS = 64, 8
"""Rows and warps of a block that sums over rows, or rounds dQ."""
RUNNING = "dQ_running"
"""Name of the buffer of dQ in float32, in fragments."""
DQ_COLUMNS = 8
"""Columns of a fragment of dQ, which has `FRAGMENT` rows."""


def keys_grid(problem: Problem, tile: BackwardMmaTile) -> tuple[int, int, int]:
    """Heads side by side: blocks start with the first keys of several heads, which most rows see where causal.

    With unpadded sequences, it has blocks for the one with the most keys; the others do without some.
    """
    if features.has_varlen(problem):
        return key_grid_across(problem, tile)
    p, schedule = problem, MmaBackwardSchedule(problem, tile)
    reach = None if p.mask.is_run else Schedule(p, tile).key_visits
    # Q_i and dO_i, and dQ_i, of all heads that share K and V.
    tile_bytes = p.group * tile.Br * p.head_dim * (2 * p.itemsize_bytes + FLOAT32_BYTES)
    knows_heads = has_spans(p) or p.dropout > 0 or features.changes_scores(p) or not p.layout.is_dense
    return grid_side_by_side(p, p.kv_heads_count, schedule.key_visits, tile_bytes, knows_heads, reach)


def gradient_of_Q(problem: Problem, added: bool) -> Feature:
    """Return where dQ is computed: whether blocks that own keys add to it in memory."""
    in_memory = "AddedBySequence" if features.has_varlen(problem) else "AddedInMemory"
    chosen = (in_memory, (RUNNING,)) if added else ("ComputedElsewhere", ())
    return Feature("DQ", *chosen, ((FOLDER, "dq.cuh"),))


def of_layouts(problem: Problem) -> tuple[Feature, Feature]:
    """Return where the rows of tensors and of their gradients lie, the last parameters of kernels."""
    files = features.LAYOUT_FILES if problem.layout.is_dense else (*features.LAYOUT_FILES, *STRIDED)
    own, gradients = features.layout(problem), features.gradient_layout(problem)
    return replace(own, files=files), replace(gradients, files=files)


def mma_kernel(
    folder: str,
    file: str,
    name: str,
    problem: Problem,
    sizes: Mapping[str, int],
    features: tuple[Feature, ...],
    parts: Files = (),
) -> Any:
    """The kernel `name` of variants/`folder`/`file`, before which tiles.cuh, its features and then `parts` are put."""
    from variants._tiles.rawkernel import raw_kernel

    options = tuple(f"-D{size}={value}" for size, value in {**sizes, "DV": problem.v_width}.items())
    files, using = declarations(features)
    return raw_kernel(folder, name, options, (*stored(problem.dtype), *COMMON_WITH_TILES, *files), using, file, parts)


def size_options(problem: Problem, tile: BackwardMmaTile | MmaTile) -> dict[str, int]:
    """The compile-time parameters of kernels that compute dS."""
    return {
        "D": problem.head_dim,
        "BR": tile.Br,
        "BC": tile.Bc,
        "WARPS": tile.warps,
        "BLOCKS_PER_SM": tile.blocks_per_sm,
    }


def scalars(problem: Problem) -> tuple[Any, ...]:
    """(q_len, kv_len, group, tau, tau times log2 e), as kernels take them that compute dS.

    With score terms, the last is what products are multiplied by before them.
    """
    p = problem
    sizes = (np.int32(p.q_len), np.int32(p.kv_len), np.int32(p.group))
    factor = features.factor(p) if features.changes_scores(p) else p.tau * LOG2_E
    return (*sizes, np.float32(p.tau), np.float32(factor))


APPROXIMATE = {"softcap": "approximate softcap"}
"""Names of terms in Numba that have one instruction for what others compute accurately."""


def score_terms(problem: Problem) -> Feature:
    """Return what happens to a score before the softmax, with approximate tangents."""
    scores = features.scores(problem)
    return replace(scores, name="ScoreTerms", cuda_type=scores.cuda_type.replace("Softcap", "ApproximateSoftcap"))


def numba_terms(problem: Problem) -> tuple[str, ...]:
    """Return the names of the terms' functions in Numba."""
    return tuple(APPROXIMATE.get(term.field, term.field) for term in problem.score_terms)


def order_of_keys(problem: Problem, tile: BackwardMmaTile) -> Feature:
    """Return which tiles of rows a block of keys visits. BR and BC are rows and keys: its type is not mirrored."""
    order, rule = tile_order(problem, tile, mirrored=True), rule_of(problem, tile)
    return order if rule is None else replace(order, cuda_type=f"ListedTiles<{rule.cuda_type}>")


def keys_features(problem: Problem, tile: BackwardMmaTile, adds_dQ: bool) -> tuple[Feature, ...]:
    """The features of the kernel whose blocks own keys, in the order of its parameters."""
    limits, dropout = features.mirrored_limits(problem), features.dropout(problem)
    of_scores, sequences = (gradient_of_Q(problem, adds_dQ), score_terms(problem)), features.mirrored_sequences(problem)
    return limits, dropout, *of_scores, order_of_keys(problem, tile), sequences, *of_layouts(problem)


def keys_kernel(problem: Problem, tile: BackwardMmaTile, adds_dQ: bool) -> Any:
    """The kernel of keys.cu."""
    strided = () if problem.layout.is_dense else ((FOLDER, "strided_anew.cuh"),)
    parts, of_keys = (*FRAGMENTS, *strided, *OWNING_KEYS), keys_features(problem, tile, adds_dQ)
    return mma_kernel(FOLDER, "keys.cu", "bwd_mma_of_keys", problem, size_options(problem, tile), of_keys, parts)


def keys_launch(problem: Problem, kernel: Any, tile: BackwardMmaTile, adds_dQ: bool) -> Launch:
    """Its launch, after `prepare_launch`."""
    p = problem
    args = ("Q", "K", "V", "dO", "L", "D", "dK", "dV", *scalars(p), *arguments(keys_features(p, tile, adds_dQ)))
    return Launch(kernel, keys_grid(p, tile), (32 * tile.warps,), args, tile.shared_bytes(p.head_dim, adds_dQ))


def end_kernel(problem: Problem, name: str, adds_dQ: bool, stats_of_tiles: bool = False, in_order: bool = False) -> Any:
    """The kernel of prepare.cu or round.cu, `name`."""
    sizes = {"D": problem.head_dim, "BR": END_ROWS, "WARPS": END_WARPS}
    types = (gradient_of_Q(problem, adds_dQ), stats(stats_of_tiles), order(in_order))
    types = (*types, features.sequences(problem), *of_layouts(problem))
    return mma_kernel(FOLDER, f"{name}.cu", f"bwd_mma_{name}", problem, sizes, types)


def end_grid(problem: Problem) -> tuple[int, int, int]:
    """(blocks of rows, heads, sequences), with blocks for the longest of unpadded sequences."""
    sequences, rows = features.sequence_extents(problem)
    return blocks(rows, END_ROWS), problem.heads, sequences


def prepare_launch(problem: Problem, kernel: Any, adds_dQ: bool, in_order: bool = False) -> Launch:
    """The launch that computes D, and L = log2(e) lse."""
    types = (gradient_of_Q(problem, adds_dQ), order(in_order), features.sequences(problem), *of_layouts(problem))
    args = ("O", "dO", "lse", "L", "D", np.int32(problem.q_len), *arguments(types))
    return _end_launch(problem, kernel, args, tiles=2)


def round_launch(problem: Problem, kernel: Any) -> Launch:
    """The launch that writes dQ, which blocks added in memory."""
    _, gradients = of_layouts(problem)
    types = arguments((gradient_of_Q(problem, added=True), features.sequences(problem), gradients))
    return _end_launch(problem, kernel, ("dQ", np.int32(problem.q_len), np.float32(problem.tau), *types), tiles=1)


def _end_launch(problem: Problem, kernel: Any, args: tuple[Any, ...], tiles: int) -> Launch:
    """The launch of such a kernel, with so many tiles of rows on chip, and a float for each row."""
    shared_bytes = tiles * END_ROWS * row_bytes(problem.head_dim)
    return Launch(
        kernel,
        end_grid(problem),
        (32 * END_WARPS,),
        args,
        shared_bytes=shared_bytes + FLOAT32_BYTES * END_ROWS,
    )


class MmaBackwardSchedule(BackwardSchedule):
    """The bytes of tiles that are copied with up to 16 bytes per lane, and of dQ in whole fragments."""

    @property
    def copy(self) -> TileCopy:
        """How tiles are brought on chip. Lanes store as many elements at once."""
        return tile_copy(self.problem.head_dim, features.rows_aligned_to(self.problem))

    @property
    def dQ_bytes(self) -> Integers:
        """(T_r,): bytes of storing dQ_i."""
        return self.row_bytes("dQ", elements_per_lane=self.copy.elements_per_lane)

    def copied_bytes(self, *names: str) -> Integers:
        """(T_r,): bytes of bringing row block i of tensors on chip; names are Q, O and dO."""
        return np.sum([self.row_bytes(name, self.copy) for name in names], axis=0)

    @property
    def copied_key_tile_bytes(self) -> Integers:
        """(S, T_c): bytes of bringing K_j, or V_j, on chip once for every query head."""
        return self.key_tile_bytes(self.copy)

    def own_key_bytes(self, name: str) -> Integers:
        """(T_c,): bytes of tile j of K, V, dK or dV, once for each key/value head."""
        is_copied = not name.startswith("d")
        how = (self.copy, 1) if is_copied else (None, self.copy.elements_per_lane)
        moved: Integers = np.sum(self._moved(name, self.first_keys, self._keys, *how), axis=1)
        return moved

    @functools.cached_property
    def mixed(self) -> Booleans:
        """(S, T_r, T_c): which visited tiles have pairs that a mask hides besides runs."""
        rule = rule_of(self.problem, self.tile)
        mixed: Booleans = self.visited & (False if rule is None else ~rule.seen[1][0])
        return mixed

    def list_traffic(self, warps: int) -> tuple[int, int]:
        """Bytes read and written because tiles of rows are listed, with `warps` in a block; 0 where rows see runs.

        One thread of a block reads how many there are, and each entry once per query head.
        """
        p, lists = self.problem, Visits(self, mirrored=True)
        if p.mask.is_run:
            return 0, 0
        alike = p.batch * p.kv_heads_count // len(self.key_visits)
        reads = alike * int((1 + p.group * self.key_visits).sum())
        of_mask, of_rule = lists.mask_traffic(warps, reads=0), lists.rule_traffic
        return of_mask[0] + of_rule[0] + SECTOR_BYTES * reads, of_mask[1] + of_rule[1]

    @property
    def running_bytes(self) -> Integers:
        """(T_r,): bytes of dQ_i in float32, summed in fragments: all rows and columns of those it touches."""
        p = self.problem
        fragments = blocks(self._rows, FRAGMENT) * blocks(p.head_dim, DQ_COLUMNS)
        bytes_of_one = FRAGMENT * DQ_COLUMNS * FLOAT32_BYTES
        heads = p.batch * p.heads // len(p.spans[0])
        return np.broadcast_to(heads * fragments * bytes_of_one, (len(p.spans[0]), len(fragments)))


def running_shape(problem: Problem) -> tuple[int, ...]:
    """Shape of dQ summed in fragments of 16 rows and 8 columns: (batch, heads, T_r, T_d, 4, 32).

    Each of several unpadded sequences has fragments of its own.
    """
    p = problem
    sequences = p.sequences
    row_blocks = blocks(p.q_len, FRAGMENT) if sequences is None else p.q_len // FRAGMENT + sequences.sequence_count
    return (p.batch, p.heads, row_blocks, blocks(p.head_dim, DQ_COLUMNS), 4, 32)


def mma_schedules(problem: Problem, tile: Sizes) -> tuple[MmaBackwardSchedule, ...]:
    """Return the tiles of each unpadded sequence; of the whole problem if it has no such sequences."""
    if problem.sequences is None:
        return (MmaBackwardSchedule(problem, tile),)
    return tuple(MmaBackwardSchedule(problem, tile, number) for number in range(problem.sequences.sequence_count))


def end_schedules(problem: Problem) -> tuple[MmaBackwardSchedule, ...]:
    """Return the tiles of the launches before and after, as `mma_schedules`."""
    return mma_schedules(problem, Tile(END_ROWS, END_ROWS))


def end_start_bytes(problem: Problem) -> int:
    """Return bytes of reading where the rows of sequences begin and end in one of these launches."""
    return features.start_bytes(problem, END_WARPS, int(np.prod(end_grid(problem))), 0)


def prepare_bytes(problem: Problem) -> tuple[int, int]:
    """(read, written) by the launch that sums over rows: O, dO and lse; L and D."""
    own = end_schedules(problem)
    read_bytes = sum(int((s.copied_bytes("O", "dO") + s.stat_bytes).sum()) for s in own)
    return read_bytes + end_start_bytes(problem), sum(int(2 * s.stat_bytes.sum()) for s in own)
