"""Cases of attention whose sequences lie so far apart that offsets into Q and O, or into K and V, exceed 32 bits."""

from __future__ import annotations

from collections.abc import Sequence

from harness.model.cases.case import Case
from harness.model.problem import ELEMENT_BYTES
from harness.model.spread import FAR, reached_by_all
from harness.operations.attention.cases.build import AttentionBuild
from harness.operations.attention.problem import DROPOUT, LAYOUT, Problem

MOST_SEQUENCES = 65_535
"""A grid has at most this many blocks along y and z, where most kernels have their heads and sequences."""
FEW_ROWS = 5
"""Rows, or keys beyond a tile, of the other length, so that a case takes a fraction of a second."""
SCRATCH_FAR = 3 * 2**30
"""Distance at which offsets that overflow in 32 bits are negative, also if sequences lie up to a third farther apart.

Launches that share scratch memory may all compute the same wrong offset. If that is another sequence's place, no
result is wrong, since only the blocks of one sequence run. If it is negative, the access is out of bounds.
"""


def cases_of_campaign(builds: Sequence[AttentionBuild], seed: int) -> tuple[Case, ...]:
    """Return the cases of the first build, and those for scratch memory, in the first build of 16 bits if there is one.

    Many kernels have scratch memory only there, to sum in float32. If the builds have layouts, the first such build has
    cases, too: kernels may compute offsets from strides elsewhere. These have no other features.
    """
    kept = [build for build in builds if not {DROPOUT, LAYOUT} & set(build.features)]
    narrow = next((build for build in kept if ELEMENT_BYTES[build.dtype] == 2), builds[0])
    strided = next((build.having((LAYOUT,)) for build in builds if LAYOUT in build.features), None)
    of_layouts = () if strided is None else far_cases(strided, seed)
    return (*far_cases(builds[0], seed), *far_cases(narrow, seed, SCRATCH_FAR), *of_layouts)


def far_cases(build: AttentionBuild, seed: int, far: int = FAR) -> tuple[Case, ...]:
    """Return one case with many rows and few keys, and one with few rows and many keys, each of a single head.

    A sequence is as long as it has to be for a batch of at most `MOST_SEQUENCES`. None with dropout, whose numbers
    depend on the batch. With a layout there are two heads, so that heads and rows have different strides. If rows of V
    have a length of their own, the tensors with the shorter rows reach the distance, too.
    """
    if DROPOUT in build.features:
        return ()
    rows = build.head_dim, build.v_head_dim or build.head_dim
    shortest_row = min(rows)
    heads = 2 if LAYOUT in build.features else 1
    long = -(-far // ((MOST_SEQUENCES - 1) * heads * shortest_row)) + 1
    # Scores in float32 take as much memory as 32 bits of elements where there are twice as many keys as columns.
    few = min(build.tile_keys + FEW_ROWS, 2 * shortest_row - 1)
    features = build.drawn_features(lambda values: values[0])
    return tuple(
        Case(
            Problem(
                heads=heads,
                q_len=q_len,
                kv_len=kv_len,
                head_dim=build.head_dim,
                dtype=build.dtype,
                far=reached_by_all(far, rows),
                **features,
            ),
            seed=seed,
            tile=build.tile,
        )
        for q_len, kv_len in ((long, few), (FEW_ROWS, long))
    )
