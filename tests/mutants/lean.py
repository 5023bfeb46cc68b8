"""Equal runs of keys for each block, whose parts the last block combines: lean."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

Text = tuple[str, str]
"""What is replaced, and by what."""
RUNS = ("_mma/equal_runs.cuh", "_mma/numba_equal_runs.py")
OWN = ("attention/lean/kernel.cu", "attention/lean/numba_kernel.py")
SEGMENTS = "_mma/segments.cuh"
"""What CUDA's kernel alone has: the next keys arrive while a block ends with these."""


def _in_kernel(
    bug: str, cuda: Text, numba: Text, *, sanitize: bool = False, files: tuple[str, str] = RUNS
) -> tuple[Mutant, ...]:
    return tuple(
        Mutant(bug, f"lean-{language}", (Patch(file, *replaced),), sanitize)
        for language, file, replaced in zip(("cupy", "numba"), files, (cuda, numba))
    )


def _in_segments(bug: str, old: str, new: str, *, file: str = SEGMENTS, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "lean-cupy", (Patch(file, old, new),), sanitize)


IN_SEGMENTS = (
    _in_segments("a segment multiplies the next one's rows", "CONTINUES * number * SLOT_BYTES", "SLOT_BYTES"),
    _in_segments("the next rows not waited for", "            wait_for_copies<0>();", "            //", sanitize=True),
    _in_segments("as many copies ahead as slots", "= Tiles::COUNT - 1 - ahead", "= Tiles::COUNT - ahead",
                 sanitize=True),
    _in_segments("next keys before the last of these", "copied_key >= keys.end && has_next", "has_next"),
    _in_segments("V of the next keys for their K", "copied++ % 2 == 1", "copied++ % 2 == 0"),
    _in_segments("O lies where the next keys arrive", "O_ROWS = CONTINUES ?", "O_ROWS = false ?",
                 file="_mma/splits.cuh", sanitize=True),
)  # fmt: skip
MUTANTS = (
    *_in_kernel(
        "output tiles of a head share a counter",
        ("segment.kv_head * tiles_per_head + segment.number, count", "segment.kv_head * tiles_per_head, count"),
        ("segment[KV_HEAD] * tiles_per_head + segment[NUMBER]", "segment[KV_HEAD] * tiles_per_head"),
        sanitize=True,
    ),
    *_in_kernel(
        "combined before the last part is there",
        ("count - 1) == count - 1;", "count - 1) == 0;"),
        ("uint32(count - 1)) == uint32(count - 1))", "uint32(count - 1)) == uint32(0))"),
        sanitize=True,
    ),
    *_in_kernel(
        "parts not fenced before the counter",
        ("atom.acq_rel.gpu", "atom.relaxed.gpu"),
        (
            "        cuda.threadfence()\n        cuda.syncthreads()\n        if t == 0:\n            tiles",
            "        cuda.syncthreads()\n        if t == 0:\n            tiles",
        ),
        sanitize=True,
    ),
    *_in_kernel(
        "first part taken for the second",
        ("part_at_begin(first_block + 1)", "part_at_begin(first_block)"),
        ("part_at_begin(uint32(first_block + uint32(1)))", "part_at_begin(first_block)"),
    ),
    *_in_kernel(
        "parts not brought to one maximum",
        ("weights[p * BR + row] = exp_below(weights[p * BR + row], finished.m);", "weights[p * BR + row] = 1.0f;"),
        ("store_float(at, exp_below(load_float(at), finished.m))", "store_float(at, float32(1))"),
    ),
    *_in_kernel(
        "l of one lane's parts",
        ("finished(warp_sum(l), m,", "finished(l, m,"), ("finished_row(warp_sum(l), m,", "finished_row(l, m,"),
    ),
    *_in_kernel(
        "keys of the first part in every part",
        ("(segment.at - segment.begin)) * LEAN_TILE", "0) * LEAN_TILE"),
        ("begin = int32((first_lean + segment[AT])", "begin = int32((first_lean + segment[BEGIN])"),
        files=OWN,
    ),
    *_in_kernel(
        "the first lean tile of a window is the first of all",
        (
            "int first_lean_tile() const { return first / LEAN_TILE; }",
            "int first_lean_tile() const { return 0; }",
        ),
        ("return int32(uint32(tile.first) // uint32(LEAN_TILE))", "return int32(0)"),
    ),
    *_in_kernel(
        "first keys of the second of two heads left out",
        ("first(run.first(heads_meet ? 0 : first_query))", "first(run.first(first_query))"),
        ("first_seen(int32(0) if heads_meet else first_query,", "first_seen(first_query,"),
    ),
    *_in_kernel(
        "the next segment begins while the last is read",
        ("            __syncthreads();  // nothing of it is read in shared memory any more\n", ""),
        ("            cuda.syncthreads()  # nothing of the last segment is read in shared memory any more\n", ""),
        sanitize=True, files=(SEGMENTS, OWN[1]),
    ),
    *IN_SEGMENTS,
    *_in_kernel(
        "a sink is left out of whole tiles' O",
        ("weight[t] = exp_below(shared_m(t), row.m);", "weight[t] = 1.0f;"),
        ("weight[t] = exp_below(shared_m(shared, t), row.m)", "weight[t] = float32(1)"),
    ),
)  # fmt: skip
