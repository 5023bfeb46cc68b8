"""What becomes of scores in fa3, and its sinks. What other variants get wrong there is in scores.py."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.patching import Mutant, Patch
from tests.mutants.planting import Replacement

FOLDER = "attention/fa3"


def _in_scoring(bug: str, cuda: Replacement | None, numba: Replacement | None) -> Iterator[Mutant]:
    """In scoring.cuh, and in its twin from Python."""
    for backend, file, change in (("cupy", "scoring.cuh", cuda), ("numba", "numba_scoring.py", numba)):
        if change is not None:
            yield Mutant(bug, f"fa3-{backend}", (Patch(f"{FOLDER}/{file}", *change),))


def _in_kernel(bug: str, old: str, new: str) -> Mutant:
    return Mutant(bug, "fa3-cupy", (Patch(f"{FOLDER}/kernel.cu", old, new),))


MUTANTS = (
    *_in_scoring(
        "tanh of the product, not of its share of the cap",
        ("tanh_approx(tau * S[e])", "tanh_approx(S[e])"),
        ("tanh_approx(tau * S[4 * j + c])", "tanh_approx(S[4 * j + c])"),
    ),
    *_in_scoring(
        "row's share of the penalty to the tile's first key",
        ("from_first - LAST : -from_first", "from_first : -from_first"),
        ("int32(from_first - LAST) if", "int32(from_first) if"),
    ),
    *_in_scoring(
        "keys after the row's place nearer than it",
        ("from_first - LAST : -from_first", "from_first - LAST : from_first"),
        ("else int32(-from_first))", "else int32(from_first))"),
    ),
    *_in_scoring(
        "distances from the first column of four lanes",
        (" + diagonal - (int)threadIdx.x % 4 * 2;", " + diagonal;"),
        ("p.kv_len - p.q_len - int32(lane_index() & 3) * 2)", "p.kv_len - p.q_len)"),
    ),
    *_in_scoring(
        "slope of row g's head for row g + 8",
        ("tile.head(mine + 8 * h, p)", "tile.head(mine, p)"),
        ("head_of(tile, mine[h], p)", "head_of(tile, mine[0], p)"),
    ),
    *_in_scoring(
        "row's share of the penalty left out",
        ("return of_row[h] + minus_m;", "return minus_m;"),
        ("return of_row[h] + minus_m if SLOPES else minus_m", "return minus_m"),
    ),
    *_in_scoring(
        "sink in powers of e",
        ("sink = LOG2_E * logit,", "sink = logit,"),
        ("sink = LOG2_E * sink_of(choices, head)", "sink = sink_of(choices, head)"),
    ),
    *_in_scoring("l not brought to the sink's maximum", ("l = correction * l +", "l = l +"), ("growth * l +", "l +")),
    *_in_scoring(
        "O not brought to the sink's maximum",
        ("    return correction;", "    return 1.0f;"),
        ("+ exp2_approx(sink + minus_m), growth", "+ exp2_approx(sink + minus_m), np.float32(1)"),
    ),
    _in_kernel(
        "capped after the mask",
        "    const auto powers = scoring.template apply<AROUND>(S, at.first_key());\n    mask(S, seen());\n",
        "    mask(S, seen());\n    const auto powers = scoring.template apply<AROUND>(S, at.first_key());\n",
    ),
    _in_kernel(
        "a tile on both sides of the rows taken for one before them",
        "            visit(On<AROUND>(), !own.whole.has(at), true);\n        }\n        if constexpr",
        "            visit(On<BEFORE>(), !own.whole.has(at), true);\n        }\n        if constexpr",
    ),
    Mutant(
        "slopes and sinks counted through the batch",
        "fa3-cupy",
        (Patch("_hopper/row_tiles.cuh", "(rows.head << 6 - p.packs.head_shift)", "(pack << 6 - p.packs.head_shift)"),),
    ),
)
