"""Producer and consumers, barriers that count bytes, products under way: fa3, which is CUDA alone."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

KERNEL, HOPPER, SOFTMAX = "attention/fa3/kernel.cu", "_hopper/hopper.cuh", "_hopper/softmax.cuh"


ONE_BLOCK = Patch(
    "attention/fa3/__init__.py", "(min(q_heads * row_tiles, MULTIPROCESSORS),)", "(min(q_heads * row_tiles, 1),)"
)
"""As right as any other number. Campaigns have fewer tiles of rows than an H200 has multiprocessors, and what a block
does with its second one would not be seen."""


def _in(file: str, bug: str, old: str, new: str, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "fa3-cupy", (Patch(file, old, new),), sanitize)


def _in_second_tile(bug: str, old: str, new: str, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "fa3-cupy", (Patch(KERNEL, old, new), ONE_BLOCK), sanitize)


_BARRIERS = (
    _in(
        KERNEL,
        "wait on the wrong parity for V",
        "wait(barriers.V_full[stage(older)], phase(older));",
        "wait(barriers.V_full[stage(older)], phase(older) ^ 1);",
    ),
    _in(
        KERNEL,
        "wait on the wrong parity for room",
        "wait(barriers.K_empty[s], phase(step) ^ 1);",
        "wait(barriers.K_empty[s], phase(step));",
    ),
    _in(
        KERNEL,
        "a stage of V filled while it is read",
        "            wait(barriers.V_empty[s], phase(step) ^ 1);\n",
        "",
    ),
    _in(
        KERNEL,
        "one consumer speaks for all",
        "init_barrier(barriers.V_empty[stage], CONSUMERS);",
        "init_barrier(barriers.V_empty[stage], CONSUMERS - 1);",
    ),
    _in_second_tile(
        "one arrival too many awaited",
        "init_barrier(barriers.Q_empty, CONSUMERS);",
        "init_barrier(barriers.Q_empty, CONSUMERS + 1);",
    ),
    _in(
        KERNEL,
        "half of the bytes expected",
        "arrive_and_expect(barriers.V_full[s], KV_BYTES);",
        "arrive_and_expect(barriers.V_full[s], KV_BYTES / 2);",
    ),
    _in_second_tile(
        "Q fetched while O is on its way out",
        "            wait(barriers.Q_empty, (round & 1) ^ 1);\n",
        "",
        sanitize=True,
    ),
    _in_second_tile(
        "next work told before the last was heard",
        "        wait(barriers.work_heard, (round & 1) ^ 1);\n",
        "",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "O stored before all warps have written theirs",
        "            sync_threads(OWN + warpgroup, WARPGROUP);\n            if (speaks)",
        "            if (speaks)",
        sanitize=True,
    ),
)
_FENCES = (
    _in(
        KERNEL,
        "no proxy fence before O is stored",
        "            publish_to_async();\n            sync_threads(OWN + warpgroup",
        "            sync_threads(OWN + warpgroup",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "no proxy fence after the sign of Q",
        "    publish_to_async();\n    sync_threads(OWN + warpgroup",
        "    sync_threads(OWN + warpgroup",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "no proxy fence after zeros in V",
        "    publish_to_async();\n    sync_threads(ALL_CONSUMERS",
        "    sync_threads(ALL_CONSUMERS",
        sanitize=True,
    ),
)
_PRODUCTS = (
    _in(KERNEL, "S read a group too early", "wait_for_products<1>(S);", "wait_for_products<2>(S);"),
    _in(
        KERNEL,
        "O corrected a group too early",
        "wait_for_products<0>(own.O);\n                    if (speaks) arrive(barriers.V_empty[stage(older)]);",
        "wait_for_products<1>(own.O);\n                    if (speaks) arrive(barriers.V_empty[stage(older)]);",
    ),
    _in(HOPPER, "the other width's swizzle", "(COLUMNS == 64 ? 1 : 2) << 62", "(COLUMNS == 64 ? 2 : 1) << 62"),
    _in(HOPPER, "O in the other width's swizzle", "row % 8 : row / 2 % 4", "row / 2 % 4 : row % 8"),
    _in(HOPPER, "boxes of V as far apart as rows", "(u64)(ROWS * ROW_BYTES / 16) << 16", "(u64)(ROW_BYTES / 16) << 16"),
    _in(KERNEL, "one stage short", "V_tiles = K_tiles + STAGES *", "V_tiles = K_tiles + (STAGES - 1) *"),
)
_WORK = (
    _in_second_tile("the counter is not set back", "atomicInc(&taken, tiles - 1)", "atomicAdd(&taken, 1)"),
    _in(
        KERNEL,
        "no Q for rows that see no key",
        "        if (work.end_tile <= work.first_tile) load_Q();\n",
        "",
    ),
    _in(
        KERNEL,
        "grouped heads by tiling instead of repetition",
        "work.head / p.group",
        "work.head % (p.heads / p.group)",
    ),
)
_SOFTMAX = (
    _in(
        KERNEL,
        "padding not masked",
        "                mask(S, seen_of(j));\n                exponentiate",
        "exponentiate",
    ),
    _in(
        KERNEL,
        "a tile on the diagonal taken for unmasked",
        "whole_to = end_seen(work.first_row, q_len, kv_len, after) / BC;",
        "whole_to = (end_seen(work.first_row, q_len, kv_len, after) + BC - 1) / BC;",
    ),
    _in(
        KERNEL,
        "first tile of a window taken for unmasked",
        "(first_seen(last_row, q_len, kv_len, before) + BC - 1) / BC;",
        "first_seen(last_row, q_len, kv_len, before) / BC;",
    ),
    _in(KERNEL, "O not rescaled", "                    correct(own.O, correction);\n", ""),
    _in(SOFTMAX, "P relative to the old maximum", "rows.m[h] = m;", "minus_m[h] = -rows.m[h], rows.m[h] = m;"),
    _in(KERNEL, "l summed in one lane only", "const float l = quad_sum(own.l[h]);", "const float l = own.l[h];"),
    _in(
        KERNEL,
        "V behind the mask not looked at",
        "                take();\n                --j;",
        "                --j;",
    ),
    _in(KERNEL, "NaN and infinity in V dropped", "    add_not_finite(O, P, V_tile, keys, seen);\n", ""),
    _in(KERNEL, "maximum before a negative scale", "if (sign != 1) give_sign", "if (sign == 0) give_sign"),
)

MUTANTS = (*_BARRIERS, *_FENCES, *_PRODUCTS, *_WORK, *_SOFTMAX)
