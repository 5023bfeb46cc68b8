"""Producer and consumers, barriers that count bytes, products under way: fa3 in CUDA. Its twin: pipelines_numba.py."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

FOLDER = "attention/fa3"
KERNEL, NOT_FINITE = f"{FOLDER}/kernel.cu", f"{FOLDER}/not_finite.cuh"
PIPELINE, ROWS, KEYS = "_hopper/pipeline.cuh", "_hopper/row_tiles.cuh", "_hopper/key_tiles.cuh"
INSPECTION = "_hopper/inspection.cuh"
HOPPER, SOFTMAX, LIMITS = "_hopper/hopper.cuh", "_hopper/softmax.cuh", "_hopper/limits.cuh"


ONE_BLOCK = Patch("attention/fa3/__init__.py", "(min(tiles_of_rows(p, tile), MULTIPROCESSORS),)", "(1,)")
"""As right as any other number. Campaigns have fewer tiles of rows than an H200 has multiprocessors, and what a block
does with its second one would not be seen."""


def _in(file: str, bug: str, old: str, new: str, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "fa3-cupy", (Patch(file, old, new),), sanitize)


def _in_second_tile(file: str, bug: str, old: str, new: str, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "fa3-cupy", (Patch(file, old, new), ONE_BLOCK), sanitize)


def _raced(file: str, bug: str, *changes: tuple[str, str]) -> Mutant:
    """Several changes of a file, which only the sanitizer is sure to see; a block has several tiles."""
    return Mutant(bug, "fa3-cupy", (*(Patch(file, old, new) for old, new in changes), ONE_BLOCK), sanitize=True)


_RELEASE_V = "        if (consumer.leads) consumer.V.release(older);             // line 15, V\n"
_WAIT_FOR_O = "        wait_for_products<0>(rows.O);                              // line 14\n"
_CORRECT = "        if (!CORRECTS_BESIDE_S) correct(rows.O, correction);\n"
_ROUND = "        round_weights(P, S);                                       // line 16\n"

_BARRIERS = (
    _in(
        KERNEL,
        "wait on the wrong parity for V",
        "consumer.V.wait_until_full(older); ",
        "wait(consumer.V.slots.full(older), Slots<STAGES>::phase(older) ^ 1); ",
    ),
    _in(
        PIPELINE,
        "wait on the wrong parity for room",
        "K.slots.wait_until_empty(step);",
        "wait(K.slots.are_empty[step % STAGES], Slots<STAGES>::phase(step));",
    ),
    _in(PIPELINE, "a stage of V filled while it is read", "            V.slots.wait_until_empty(step);\n", ""),
    _in(
        PIPELINE,
        "one consumer speaks for all",
        "V.init(CONSUMERS * readers + VInspection::WARPS);",
        "V.init(CONSUMERS * readers + VInspection::WARPS - 1);",
    ),
    _in_second_tile(PIPELINE, "one arrival too many awaited", "readers / Q_SLOTS);", "readers / Q_SLOTS + 1);"),
    _in(
        PIPELINE, "half of the bytes expected", "V.slots.expect(step, KV_BYTES);", "V.slots.expect(step, KV_BYTES / 2);"
    ),
    _in_second_tile(
        PIPELINE,
        "Q fetched while the last one is read",
        "                    pipeline.Q[q].wait_until_empty(round);\n",
        "",
        sanitize=True,
    ),
    _in_second_tile(
        PIPELINE,
        "next work told before the last was heard",
        "        work.wait_until_empty(round);\n",
        "",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "O stored before all warps have written theirs",
        "        sync_threads(OWN + consumer.number, WARPGROUP);\n        store_output(",
        "        store_output(",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "each thread gives back what one should",
        _RELEASE_V,
        "        consumer.V.release(older);\n",
    ),
    _in(
        PIPELINE,
        "bytes of all consumers expected for each",
        "expect(round, Q_BYTES / Q_SLOTS);",
        "expect(round, Q_BYTES);",
    ),
    _raced(
        KERNEL,
        "first tile of K given back before the wait",
        (
            "    wait_for_products<0>(S);\n    if (consumer.leads) consumer.K.release(step);\n",
            "    if (consumer.leads) consumer.K.release(step);\n    wait_for_products<0>(S);\n",
        ),
    ),
    _raced(KERNEL, "V given back before the wait", (f"{_WAIT_FOR_O}{_RELEASE_V}", f"{_RELEASE_V}{_WAIT_FOR_O}")),
    _raced(
        PIPELINE,
        "one lane tells what others have read",
        ("        work.release(round);", "        if (threadIdx.x % 32 == 0) work.release(round);"),
        ("work.init(CONSUMER_THREADS)", "work.init(CONSUMER_THREADS / 32)"),
    ),
    _raced(
        PIPELINE,
        "one lane hears for others",
        ("        work.wait_until_full(round);", "        if (threadIdx.x % 32 == 0) work.wait_until_full(round);"),
    ),
    _raced(
        INSPECTION,
        "V taken for inspected before it is",
        ("        wait(are_inspected[Stages::slot(step)], Stages::phase(step));\n", ""),
    ),
    _raced(
        INSPECTION,
        "marks of V read too late",
        ("static constexpr int WARPS = 3;", "static constexpr int WARPS = 0, INSPECTORS = 3;"),
        ("init_barrier(barrier, WARPS)", "init_barrier(barrier, INSPECTORS)"),
        ("found[STAGES][WARPS];", "found[STAGES][INSPECTORS];"),
        ("e += 32 * WARPS)", "e += 32 * INSPECTORS)"),
        ("warp < WARPS; ++warp", "warp < INSPECTORS; ++warp"),
        ("                V.release(step);\n", ""),
    ),
    _raced(
        KERNEL,
        "O written while the last one leaves",
        ("            if (consumer.leads) wait_until_read();\n            sync_threads", "            sync_threads"),
    ),
    _raced(
        KERNEL,
        "Q given back while O leaves its place",
        ("            wait_until_read();\n            Q.release(round);", "            Q.release(round);"),
    ),
    _raced(
        KERNEL,
        "O on its way out through another's rows",
        ("O_tile + first_row, K_tiles", "O_tile, K_tiles"),
    ),
)
_FENCES = (
    _in(
        KERNEL,
        "no fence before Q K^T",
        "    begin_products();\n    multiply(S, Q, K);\n",
        "    multiply(S, Q, K);\n",
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
        "        publish_to_async();\n        sync_threads(OWN",
        "        sync_threads(OWN",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "one lane fences what others have written of O",
        "        publish_to_async();\n        sync_threads(OWN",
        "        if (lane == 0) publish_to_async();\n        sync_threads(OWN",
        sanitize=True,
    ),
    _in(
        f"{FOLDER}/scoring.cuh",
        "no proxy fence after the sign of Q",
        "    publish_to_async();\n    sync_threads(OWN",
        "    sync_threads(OWN",
        sanitize=True,
    ),
    _in(
        NOT_FINITE,
        "no proxy fence after zeros in V",
        "    publish_to_async();\n    sync_threads(ALL_CONSUMERS",
        "    sync_threads(ALL_CONSUMERS",
        sanitize=True,
    ),
)
_PRODUCTS = (
    _in(KERNEL, "S read a group too early", "wait_for_products<1>(S);", "wait_for_products<2>(S);"),
    _in(KERNEL, "O corrected a group too early", _WAIT_FOR_O, "        wait_for_products<1>(rows.O);\n"),
    _in(
        KERNEL,
        "last P V not waited for",
        "wait_for_products<0>(rows.O);\n    if (consumer.leads)",
        "wait_for_products<1>(rows.O);\n    if (consumer.leads)",
    ),
    _in(
        KERNEL,
        "P written while P V reads it",
        f"{_WAIT_FOR_O}{_RELEASE_V}{_CORRECT}{_ROUND}",
        f"{_ROUND}{_WAIT_FOR_O}{_RELEASE_V}{_CORRECT}",
        sanitize=True,
    ),
    _in(HOPPER, "a tile's rows taken for a box's", "(u64)(8 * ROW_BYTES / 16) << 32", "(u64)(8 * D * 2 / 16) << 32"),
    _in(HOPPER, "half of a step through V", "return step * ROW_BYTES;", "return step * ROW_BYTES / 2;"),
    _in(HOPPER, "the other width's swizzle", "(COLUMNS == 64 ? 1 : 2) << 62", "(COLUMNS == 64 ? 2 : 1) << 62"),
    _in(HOPPER, "O in the other width's swizzle", "row % 8 : row / 2 % 4", "row / 2 % 4 : row % 8"),
    _in(HOPPER, "boxes of V as far apart as rows", "(u64)(ROWS * ROW_BYTES / 16) << 16", "(u64)(ROW_BYTES / 16) << 16"),
    _in(KERNEL, "one stage short", "K_tiles.tiles + STAGES *", "K_tiles.tiles + (STAGES - 1) *"),
)
_WORK = (
    _in_second_tile(
        PIPELINE,
        "the counter is not set back",
        "atomicInc(&taken, p.sequences.tiles(p.packs) - 1)",
        "atomicAdd(&taken, 1)",
    ),
    _in(
        PIPELINE,
        "no Q for rows that see no key",
        "            if (is_first) {",
        "            if (sees_keys && is_first) {",
    ),
    _in(
        ROWS,
        "grouped heads by tiling instead of repetition",
        "(int)own.number(unknown(pack), rows.head) / packs.per_kv_head",
        "unknown(pack) % (packs.count / packs.per_kv_head)",
    ),
    _in(KERNEL, "a pack's second row always 8 rows on", "(mine + 8 & last)", "(mine & last) + 8"),
    _in(KERNEL, "lse of a pack's first head alone", " + (mine + 8 * h >> shift)", ""),
)
_SOFTMAX = (
    _in(KERNEL, "padding not masked", "    mask(S, seen());\n    exponentiate", "    exponentiate"),
    _in(
        ROWS,
        "a tile on the diagonal taken for unmasked",
        "(run.end(tile.rows.first_row) - KEYS_AFTER) / BC}",
        "(run.end(tile.rows.first_row) - KEYS_AFTER + BC - 1) / BC}",
    ),
    _in(
        ROWS,
        "first tile of a window taken for unmasked",
        "(run.first(tile.rows.last_row()) + BC - 1) / BC : 0",
        "run.first(tile.rows.last_row()) / BC : 0",
    ),
    _in(
        f"{FOLDER}/own_tiles.cuh",
        "a warpgroup's last tile passed over",
        "own.end = (run.end(last_row) + BC - 1) / BC",
        "own.end = run.end(last_row) / BC",
    ),
    _in(KERNEL, "O not rescaled", _CORRECT, ""),
    _in(SOFTMAX, "P relative to the old maximum", "rows.m[h] = m;", "minus_m[h] = -rows.m[h], rows.m[h] = m;"),
    _in(KERNEL, "l summed in one lane only", "float l = quad_sum(rows.l[h])", "float l = rows.l[h]"),
    _in(KERNEL, "V behind the mask not looked at", "    if (!whole.has(at)) take_V();\n", ""),
    _in(INSPECTION, "one warp's part of V alone looked at", "warp < WARPS; ++warp", "warp < 1; ++warp"),
    _in(NOT_FINITE, "NaN and infinity in V dropped", "    add_not_finite(O, P, V_tile, keys, seen);\n", ""),
    _in(KERNEL, "maximum before a negative scale", "if (sign != 1) apply_sign", "if (sign == 0) apply_sign"),
)

_SPANS = (
    _in(ROWS, "limits of the first sequence", "sequence = at.pack / p.packs.per_sequence,", "sequence = 0,"),
    _in(
        "attention/fa3/__init__.py",
        "query heads of a sequence taken for its packs",
        "p.heads // packed, head_shift",
        "p.heads, head_shift",
    ),
    _in(LIMITS, "limits read behind the last row", "min(row[h], q_len - 1)", "row[h]"),
    _in(
        KERNEL,
        "limits of the tile's first row",
        "p.limits.of_lane(row,",
        "p.limits.of_lane({tile.rows.first_row, tile.rows.first_row},",
    ),
    _in(
        KEYS,
        "tiles up to where the first row's keys end",
        "run.end(rows.last_row()) : kv_len",
        "run.end(rows.first_row) : kv_len",
    ),
    _in(KEYS, "limits not counted from the tile", "lane.end(h) - column", "lane.end(h)"),
)
_VISITS = (
    _in(ROWS, "the first head's list", "at.pack % p.packs.per_sequence, at.row_tile", "0, at.row_tile"),
    _in(ROWS, "a mixed tile taken for whole", "return !tile.is_mixed() && has(", "return has("),
    _in(
        KEYS,
        "notes of the first consumer",
        "bits_of_block() + (threadIdx.x / WARPGROUP - 1) * 64 :",
        "bits_of_block() + 0 :",
    ),
    _in(
        KEYS,
        "NaN and infinity in V where the notes hide them",
        "return in_run && !(bits.hide_some() && !(bits.word(h, key / 32) >> key % 32 & 1));",
        "return in_run;",
    ),
    _in(KEYS, "notes of the quad's first columns", ">> j % 4 * 8 + threadIdx.x % 4 * 2", ">> j % 4 * 8"),
    _in(
        PIPELINE,
        "V of the tile's place in the list",
        "load_V(V.tile(step), rows, rows.own.key(tile.first_key())",
        "load_V(V.tile(step), rows, rows.own.key(j * BC)",
    ),
)

MUTANTS = (*_BARRIERS, *_FENCES, *_PRODUCTS, *_WORK, *_SOFTMAX, *_SPANS, *_VISITS)
