"""Equal runs of keys for each block, whose parts the last block combines: lean."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

Text = tuple[str, str]
"""What is replaced, and by what."""
RUNS = ("_mma/equal_runs.cuh", "_mma/numba_equal_runs.py")
OWN = ("attention/lean/kernel.cu", "attention/lean/numba_kernel.py")


def _in_kernel(
    bug: str, cuda: Text, numba: Text, *, sanitize: bool = False, files: tuple[str, str] = RUNS
) -> tuple[Mutant, ...]:
    return tuple(
        Mutant(bug, f"lean-{language}", (Patch(file, *replaced),), sanitize)
        for language, file, replaced in zip(("cupy", "numba"), files, (cuda, numba))
    )


MUTANTS = (
    *_in_kernel(
        "output tiles of a head share a counter",
        ("arrived[segment.kv_head * tiles_per_head + segment.number]", "arrived[segment.kv_head * tiles_per_head]"),
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
        (
            "    __threadfence();\n    __syncthreads();\n    if (t == 0) {\n        const int tiles",
            "    __syncthreads();\n    if (t == 0) {\n        const int tiles",
        ),
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
        ("        __syncthreads();  // nothing of the last segment is read in shared memory any more\n", ""),
        ("            cuda.syncthreads()  # nothing of the last segment is read in shared memory any more\n", ""),
        sanitize=True, files=OWN,
    ),
    *_in_kernel(
        "a sink is left out of whole tiles' O",
        ("weight[t] = exp_below(shared_m(t), row.m);", "weight[t] = 1.0f;"),
        ("weight[t] = exp_below(shared_m(shared, t), row.m)", "weight[t] = float32(1)"),
    ),
)  # fmt: skip
