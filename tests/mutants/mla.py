"""What can go wrong in latent attention: parts of a row, tiles that are keys and values, warpgroups that take turns."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch
from tests.mutants.planting import in_kernel

_HOPPER = "mla_decode/mla_mma/kernel.cu"


def _in_mma(bug: str, old: str, new: str, *more: tuple[str, str], sanitize: bool = False) -> Mutant:
    patches = tuple(Patch(_HOPPER, *replacement) for replacement in ((old, new), *more))
    return Mutant(bug, "mla-mma-cupy", patches, sanitize)


_SPLITS = (
    *in_kernel(
        "mla-split", "scores without the rope part",
        ("        add_rope_scores(S, Q_rope, C_rope);\n", ""),
        ("            add_rope_scores(S, Q_rope, C_rope)\n", ""),
    ),
    *in_kernel(
        "mla-split", "latent part of keys for the rope part",
        ("load_columns<BC, ROPE>(C_rope, C_rows + D, keys);", "load_columns<BC, ROPE>(C_rope, C_rows, keys);"),
        ("load_rope(C_rope, BC, C_page[:, D:], row_of_page, keys)",
         "load_rope(C_rope, BC, C_page[:, :ROPE], row_of_page, keys)"),
    ),
    *in_kernel(
        "mla-split", "weights read before they are complete",
        ("        // O = O + P C_j, once P is complete.\n        __syncthreads();\n", ""),
        ("            # O = O + P C_j, once P is complete.\n            cuda.syncthreads()\n", ""),
        sanitize=True,
    ),
    *in_kernel(
        "mla-split", "page looked up at page boundaries alone",
        (" || first_key == split_first", ""),
        (" or first_key == split_first", ""),
    ),
    *in_kernel(
        "mla-split", "table row of another sequence",
        ("table + (size_t)sequence * table_len", "table + (size_t)((sequence + 1) % gridDim.z) * table_len"),
        ("table[sequence, first", "table[(sequence + 1) % cuda.gridDim.z, first"),
    ),
    *in_kernel(
        "mla-split", "rows of all heads see what the last one does",
        ("run.unclipped_end((first_row + row_of(i)) % q_len)", "run.unclipped_end(q_len - 1)"),
        ("unclipped_end(run, (first_row + row_of(i)) % q_len)", "unclipped_end(run, q_len - 1)"),
    ),
    *in_kernel(
        "mla-split", "parts of another split",
        ("* splits + split) * sequence_rows + first_row", "* splits + splits - 1 - split) * sequence_rows + first_row"),
        ("store_O(O_split[sequence, split], ", "store_O(O_split[sequence, cuda.gridDim.y - 1 - split], "),
    ),
)  # fmt: skip
_TURNS = (
    _in_mma("other consumer's correction left out",
            "        correct(rows.O, correction);\n        if (!keys.all_see(tile)) add",
            "        if (!keys.all_see(tile)) add"),
    _in_mma("m of the other consumer's tile not taken over",
            "rows.m[h] = shared.m[slot_of(tile)][consumer.row(h)];", ""),
    _in_mma("l of one consumer alone", "shared.l[0][row] + shared.l[1][row]", "shared.l[0][row]"),
    _in_mma("l not corrected by the other consumer",
            "            rows.l[h] *= correction[h];\n        }\n#pragma unroll\n        for (int i = 0;"
            " i < KEYS / 16; ++i) load",
            "        }\n#pragma unroll\n        for (int i = 0; i < KEYS / 16; ++i) load"),
    _in_mma("both consumers multiply the first half of values", "return tile(n) + number * HALF_BOXES * BOX_BYTES;",
            "return tile(n);"),
    _in_mma("last tile of the other consumer left out", "    if (tile - 1 < count) {", "    if (tile < count) {"),
    _in_mma("keys behind the last one multiplied",
            "add_where_seen(rows.O, consumer, keys, end, tile);\n        __syncwarp",
            "__threadfence_block();\n        __syncwarp"),
    _in_mma("rows of all heads see what the last one does",
            "{run.end((first_row + consumer.row(0)) % q_len), run.end((first_row + consumer.row(1)) % q_len)}",
            "{run.end(q_len - 1), run.end(q_len - 1)}"),
    _in_mma("page size off by one",
            "pages[key_of(tile) / PAGE] : NO_PAGE", "pages[key_of(tile) / (PAGE + 1)] : NO_PAGE"),
    _in_mma("first rows of a page for all of it", "row = key_of(tile) % PAGE;", "row = 0;"),
    _in_mma("values given back before they are read",
            "        wait_for_products<0>(rows.O);\n        release_V(tile);",
            "        release_V(tile);\n        wait_for_products<0>(rows.O);", sanitize=True),
    _in_mma("weights not waited for", "        wait(shared.P[slot_of(tile)], phase_of(tile));\n", "", sanitize=True),
    _in_mma("weights given back before they are read", "init_barrier(shared.empty[slot][1], 8);",
            "init_barrier(shared.empty[slot][1], 4);", sanitize=True),
    _in_mma("zeros not published to products",
            "make_uint4(0, 0, 0, 0);\n    }\n    publish_to_async();", "make_uint4(0, 0, 0, 0);\n    }", sanitize=True),
    _in_mma("scale in powers of e", "exp2_approx(S[e] + minus_m", "__expf(S[e] + minus_m"),
)  # fmt: skip
MUTANTS = (*_SPLITS, *_TURNS)
