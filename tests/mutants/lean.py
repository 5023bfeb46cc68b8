"""Equal runs of keys for each block, whose parts the last block combines: lean, which is CUDA alone."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

_RUNS = "_mma/equal_runs.cuh"


def _in_kernel(bug: str, old: str, new: str, *, sanitize: bool = False, file: str = _RUNS) -> Mutant:
    return Mutant(bug, "lean-cupy", (Patch(file, old, new),), sanitize)


MUTANTS = (
    _in_kernel(
        "output tiles of a head share a counter",
        "arrived[segment.kv_head * tiles_per_head + segment.number]", "arrived[segment.kv_head * tiles_per_head]",
    ),
    _in_kernel("combined before the last part is there", "count - 1) == count - 1;", "count - 1) == 0;", sanitize=True),
    _in_kernel(
        "parts not fenced before the counter",
        "    __threadfence();\n    __syncthreads();\n    if (t == 0) {\n        const int tiles",
        "    __syncthreads();\n    if (t == 0) {\n        const int tiles",
        sanitize=True,
    ),
    _in_kernel("first part taken for the second", "part_at_begin(first_block + 1)", "part_at_begin(first_block)"),
    _in_kernel(
        "parts not brought to one maximum",
        "weights[p * BR + row] = exp_below(weights[p * BR + row], finished.m);", "weights[p * BR + row] = 1.0f;",
    ),
    _in_kernel("l of one lane's parts", "finished(warp_sum(l), m,", "finished(l, m,"),
    _in_kernel(
        "keys of the first part in every part", "(segment.at - segment.begin)) * LEAN_TILE", "0) * LEAN_TILE",
        file="attention/lean/kernel.cu",
    ),
    _in_kernel(
        "the first lean tile of a window is the first of all",
        "int first_lean_tile() const { return first / LEAN_TILE; }", "int first_lean_tile() const { return 0; }",
    ),
    _in_kernel(
        "first keys of the second of two heads left out",
        "first(run.first(heads_meet ? 0 : first_query))", "first(run.first(first_query))",
    ),
    _in_kernel(
        "the next segment begins while the last is read",
        "        __syncthreads();  // nothing of the last segment is read in shared memory any more\n", "",
        sanitize=True, file="attention/lean/kernel.cu",
    ),
    _in_kernel(
        "a sink is left out of whole tiles' O",
        "weight[t] = exp_below(shared_m(t), row.m);", "weight[t] = 1.0f;",
    ),
)  # fmt: skip
