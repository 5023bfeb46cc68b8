"""Producer and consumers, barriers that count bytes, products under way: fa3 in CUDA. Its twin: pipelines_numba.py."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

KERNEL, PIPELINE = "attention/fa3/kernel.cu", "attention/fa3/pipeline.cuh"
HOPPER, SOFTMAX = "_hopper/hopper.cuh", "_hopper/softmax.cuh"


ONE_BLOCK = Patch("attention/fa3/__init__.py", "(min(tiles_of_rows(p, tile), MULTIPROCESSORS),)", "(1,)")
"""As right as any other number. Campaigns have fewer tiles of rows than an H200 has multiprocessors, and what a block
does with its second one would not be seen."""


def _in(file: str, bug: str, old: str, new: str, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "fa3-cupy", (Patch(file, old, new),), sanitize)


def _in_second_tile(bug: str, old: str, new: str, sanitize: bool = False, file: str = KERNEL) -> Mutant:
    return Mutant(bug, "fa3-cupy", (Patch(file, old, new), ONE_BLOCK), sanitize)


def _raced(bug: str, *changes: tuple[str, str]) -> Mutant:
    """Several changes of the kernel, which only the sanitizer is sure to see; a block has several tiles."""
    return Mutant(bug, "fa3-cupy", (*(Patch(KERNEL, old, new) for old, new in changes), ONE_BLOCK), sanitize=True)


_BARRIERS = (
    _in(
        KERNEL,
        "wait on the wrong parity for V",
        "wait(barriers.V_full[stage(older)], phase(older));",
        "wait(barriers.V_full[stage(older)], phase(older) ^ 1);",
    ),
    _in(
        PIPELINE,
        "wait on the wrong parity for room",
        "wait(barriers.K_empty[s], phase(step) ^ 1);",
        "wait(barriers.K_empty[s], phase(step));",
    ),
    _in(
        PIPELINE,
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
        "init_barrier(barriers.Q_empty[w], 1);",
        "init_barrier(barriers.Q_empty[w], 2);",
    ),
    _in(
        PIPELINE,
        "half of the bytes expected",
        "arrive_and_expect(barriers.V_full[s], KV_BYTES);",
        "arrive_and_expect(barriers.V_full[s], KV_BYTES / 2);",
    ),
    _in_second_tile(
        "Q fetched while the last one is read",
        "                    wait(barriers.Q_empty[w], (round & 1) ^ 1);\n",
        "",
        sanitize=True,
        file=PIPELINE,
    ),
    _in_second_tile(
        "next work told before the last was heard",
        "        wait(barriers.work_heard, (round & 1) ^ 1);\n",
        "",
        sanitize=True,
        file=PIPELINE,
    ),
    _in(
        KERNEL,
        "O stored before all warps have written theirs",
        "            sync_threads(OWN + warpgroup, WARPGROUP);\n            if (speaks)",
        "            if (speaks)",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "each thread gives back what one should",
        "wait_for_products<0>(own.O);\n                    if (speaks) arrive(barriers.V_empty[stage(older)]);",
        "wait_for_products<0>(own.O);\n                    arrive(barriers.V_empty[stage(older)]);",
    ),
    _in(
        PIPELINE,
        "bytes of all consumers expected for each",
        "arrive_and_expect(barriers.Q_full[w], Q_BYTES / CONSUMERS);",
        "arrive_and_expect(barriers.Q_full[w], Q_BYTES);",
    ),
    _raced(
        "first tile of K given back before the wait",
        (
            "wait_for_products<0>(S);\n                if (speaks) arrive(barriers.K_empty[stage(step)]);",
            "if (speaks) arrive(barriers.K_empty[stage(step)]);\n                wait_for_products<0>(S);",
        ),
    ),
    _raced(
        "V given back before the wait",
        (
            "wait_for_products<0>(own.O);\n                    if (speaks) arrive(barriers.V_empty[stage(older)]);",
            "if (speaks) arrive(barriers.V_empty[stage(older)]);\n                    wait_for_products<0>(own.O);",
        ),
    ),
    _raced(
        "one lane tells what others have read",
        ("            arrive(barriers.work_heard);", "            if (lane == 0) arrive(barriers.work_heard);"),
        ("(barriers.work_heard, CONSUMER_THREADS)", "(barriers.work_heard, CONSUMER_THREADS / 32)"),
    ),
    _raced(
        "one lane hears for others",
        ("wait(barriers.work_told, round & 1);", "if (lane == 0) wait(barriers.work_told, round & 1);"),
    ),
    _raced(
        "V looked through by each warp for itself",
        (
            "if (!any_of_threads(ALL_CONSUMERS, CONSUMER_THREADS, found)) return;",
            "if (!__any_sync(~0u, found)) return;",
        ),
    ),
    _raced(
        "O written while the last one leaves",
        ("if (speaks) wait_until_read();\n                sync_threads", "sync_threads"),
    ),
    _raced(
        "Q given back while O leaves its place",
        ("if (speaks) wait_until_read();\n                give_Q_back();", "give_Q_back();"),
    ),
    _raced(
        "O on its way out through another's rows",
        ("const unsigned at = O_rows + box", "const unsigned at = O_tile + box"),
        ("store_rows<BR>(O_rows, O,", "store_rows<BR>(O_tile, O,"),
    ),
)
_FENCES = (
    _in(
        KERNEL,
        "no fence before Q K^T",
        "K = along_rows(K_tile);\n    begin_products();\n",
        "K = along_rows(K_tile);\n",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "no fence before P V",
        "V = across_rows<BC>(V_tile);\n    begin_products();\n",
        "V = across_rows<BC>(V_tile);\n",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "no proxy fence before O is stored",
        "            publish_to_async();\n            sync_threads(OWN + warpgroup",
        "            sync_threads(OWN + warpgroup",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "one lane fences what others have written of O",
        "            publish_to_async();\n            sync_threads(OWN + warpgroup",
        "            if (lane == 0) publish_to_async();\n            sync_threads(OWN + warpgroup",
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
    _in(
        KERNEL,
        "last P V not waited for",
        "wait_for_products<0>(own.O);\n                if (speaks)",
        "wait_for_products<1>(own.O);\n                if (speaks)",
    ),
    _in(
        KERNEL,
        "P written while P V reads it",
        "                    wait_for_products<0>(own.O);\n"
        "                    if (speaks) arrive(barriers.V_empty[stage(older)]);\n"
        "                    correct(own.O, correction);\n"
        "                    round_weights(P, S);\n",
        "                    round_weights(P, S);\n"
        "                    wait_for_products<0>(own.O);\n"
        "                    if (speaks) arrive(barriers.V_empty[stage(older)]);\n"
        "                    correct(own.O, correction);\n",
        sanitize=True,
    ),
    _in(HOPPER, "a tile's rows taken for a box's", "(u64)(8 * ROW_BYTES / 16) << 32", "(u64)(8 * D * 2 / 16) << 32"),
    _in(HOPPER, "half of a step through V", "return step * ROW_BYTES;", "return step * ROW_BYTES / 2;"),
    _in(HOPPER, "the other width's swizzle", "(COLUMNS == 64 ? 1 : 2) << 62", "(COLUMNS == 64 ? 2 : 1) << 62"),
    _in(HOPPER, "O in the other width's swizzle", "row % 8 : row / 2 % 4", "row / 2 % 4 : row % 8"),
    _in(HOPPER, "boxes of V as far apart as rows", "(u64)(ROWS * ROW_BYTES / 16) << 16", "(u64)(ROW_BYTES / 16) << 16"),
    _in(KERNEL, "one stage short", "V_tiles = K_tiles + STAGES *", "V_tiles = K_tiles + (STAGES - 1) *"),
)
_WORK = (
    _in_second_tile(
        "the counter is not set back", "atomicInc(&taken, tiles - 1)", "atomicAdd(&taken, 1)", file=PIPELINE
    ),
    _in(
        PIPELINE,
        "no Q for rows that see no key",
        "            if (j == work.end_tile - 1) {",
        "            if (seen && j == work.end_tile - 1) {",
    ),
    _in(
        PIPELINE,
        "grouped heads by tiling instead of repetition",
        "work.pack / p.packs_per_kv_head",
        "work.pack % (p.packs / p.packs_per_kv_head)",
    ),
    _in(KERNEL, "a pack's second row always 8 rows on", "(mine + 8 & last)", "(mine & last) + 8"),
    _in(KERNEL, "lse of a pack's first head alone", "+ (mine + 8 * h >> head_shift)", ""),
)
_SOFTMAX = (
    _in(
        KERNEL,
        "padding not masked",
        "                mask(S, seen_of(j));\n                exponentiate",
        "exponentiate",
    ),
    _in(
        PIPELINE,
        "a tile on the diagonal taken for unmasked",
        "p.end_of(work.first_row, work.pack) / BC}",
        "(p.end_of(work.first_row, work.pack) + BC - 1) / BC}",
    ),
    _in(
        PIPELINE,
        "first tile of a window taken for unmasked",
        "(p.first_of(last_row, work.pack) + BC - 1) / BC : 0",
        "p.first_of(last_row, work.pack) / BC : 0",
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

_SPANS = (
    _in(PIPELINE, "limits of the first sequence", "(size_t)(pack / packs_per_sequence) * q_len", "(size_t)0 * pack"),
    _in(
        "attention/fa3/__init__.py",
        "query heads of a sequence taken for its packs",
        "np.int32(p.heads // packed),",
        "np.int32(p.heads),",
    ),
    _in(KERNEL, "limits read behind the last row", "min(row[h], q_len - 1)", "row[h]"),
    _in(
        KERNEL,
        "limits of the tile's first row",
        "min(row[h], q_len - 1)",
        "min(work.first_row + 0 * row[h], q_len - 1)",
    ),
    _in(
        PIPELINE,
        "tiles up to where the first row's keys end",
        "(p.end_of(last_row, pack) + BC - 1) / BC}",
        "(p.end_of(first_row, pack) + BC - 1) / BC}",
    ),
    _in(SOFTMAX, "limits not counted from the tile", "of_all.end[h] - column", "of_all.end[h]"),
)
_VISITS = (
    _in(PIPELINE, "the first head's list", "return pack % packs_per_sequence * lists_per_head;", "return 0 * pack;"),
    _in(KERNEL, "a mixed tile taken for whole", "return !listed.is_mixed() && whole.has", "return whole.has"),
    _in(KERNEL, "notes of the first consumer", "noted + 64 * warpgroup :", "noted :"),
    _in(KERNEL, "NaN and infinity in V where the notes hide them", "in_run && !seen.hides(h, key)", "in_run"),
    _in(SOFTMAX, "notes of the quad's first columns", ">> j % 4 * 8 + threadIdx.x % 4 * 2", ">> j % 4 * 8"),
    _in(
        PIPELINE,
        "V of the tile's place in the list",
        "V_tiles + s * KV_BYTES, V, key_tile * BC",
        "V_tiles + s * KV_BYTES, V, j * BC",
    ),
)

MUTANTS = (*_BARRIERS, *_FENCES, *_PRODUCTS, *_WORK, *_SOFTMAX, *_SPANS, *_VISITS)
