"""Roles, tensor memory, a cubic and a threshold: fa4 in CUDA."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

FOLDER = "attention/fa4"
KERNEL, SOFTMAX, CORRECTION = (f"{FOLDER}/{name}" for name in ("kernel.cu", "softmax.cuh", "correction.cuh"))
ROWS, INSPECTION = f"{FOLDER}/row_tiles.cuh", f"{FOLDER}/inspection.cuh"
PRODUCTS, EXPONENTIALS = "_blackwell/products.cuh", "_blackwell/exponentials.cuh"
LAUNCH_CONTROL = "_blackwell/launch_control.cuh"


def _in(file: str, bug: str, old: str, new: str, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "fa4-cupy", (Patch(file, old, new),), sanitize)


_TENSOR_MEMORY = (
    _in(SOFTMAX, "S read before its product is done", "            rows.S_ready.wait_for(step);\n", ""),
    _in(SOFTMAX, "P multiplied before it is stored", "            wait_for_stores();\n", ""),
    _in(CORRECTION, "O added to before it is rescaled", "    wait_for_stores();\n", ""),
    _in(KERNEL, "wait on the wrong parity for P", "P_ready.wait_for(step);", "P_ready.wait_for_previous(step);"),
    _in(
        KERNEL,
        "last P V not announced",
        "            arrive_behind_products(barriers.rows[t].O_ready.barrier);\n",
        "",
    ),
    _in(
        KERNEL,
        "tensor memory freed while it is read",
        "                barriers.finished.wait_for(0);\n",
        "",
    ),
    Mutant(
        "next O begun before the last is read",
        "fa4-cupy",
        (
            Patch(
                CORRECTION,
                "        for (int t = 0; t < 2; ++t) barriers",
                "        for (int t = 0; t < 2 && round == 0; ++t) barriers",
            ),
            Patch(
                CORRECTION,
                "            rows.O_ready.wait_for(round);\n",
                "            rows.P_ready.arrive();\n            rows.O_ready.wait_for(round);\n",
            ),
        ),
        sanitize=True,
    ),
    _in(
        KERNEL,
        "O added to what was there before",
        "const bool adds = j < tile.key_tiles - 1;",
        "const bool adds = true;",
    ),
)
_SHARED_MEMORY = (
    _in(
        KERNEL,
        "V given back before its last product",
        "                output(t, step, adds);\n"
        "                if (t == 0) keys.wait_until_full(item_of_K(step + 1));\n"
        "                if (t == 1) release(item_of_V(step));\n",
        "                if (t == 1) release(item_of_V(step));\n                output(t, step, adds);\n"
        "                if (t == 0) keys.wait_until_full(item_of_K(step + 1));\n",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "Q fetched while the last one is read",
        "            rows.wait_until_empty(round);\n",
        "",
        sanitize=True,
    ),
    _in(
        SOFTMAX,
        "growth overwritten before it is read",
        "        rows.growth.wait_until_empty(step - 1);\n        barriers.growth[t][mine] = l;\n",
        "        barriers.growth[t][mine] = l;\n",
        sanitize=True,
    ),
    _in(
        CORRECTION,
        "no proxy fence before O is stored",
        "            publish_to_async();\n",
        "",
        sanitize=True,
    ),
    _in(
        CORRECTION,
        "O staged while the last one leaves",
        "            barriers.output.wait_until_empty(2 * round + t);\n",
        "",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "V multiplied before it is inspected",
        "            if (tile.is_inspected(j)) barriers.inspection.wait_until_clean(inspected++);\n",
        "",
        sanitize=True,
    ),
)
_PRODUCTS = (
    _in(PRODUCTS, "half of a step through P", "WORDS_PER_DEPTH = DEPTH / 2", "WORDS_PER_DEPTH = DEPTH / 4"),
    _in(
        PRODUCTS,
        "V taken as it lies",
        "product_of(int columns, bool lies_across)\n{",
        "product_of(int columns, bool)\n{\n    constexpr bool lies_across = false;",
    ),
    _in(
        PRODUCTS, "boxes of V as far apart as rows", "(u64)(ROWS * ROW_BYTES / 16) << 16", "(u64)(ROW_BYTES / 16) << 16"
    ),
)
_SOFTMAX = (
    _in(
        SOFTMAX,
        "m left too far behind",
        "constexpr float THRESHOLD = 8.0f;",
        "constexpr float THRESHOLD = 200.0f, DECLARED = 8.0f;",
    ),
    _in(SOFTMAX, "m raised and O not", "const float growth = before == m ?", "const float growth = before == before ?"),
    _in(
        CORRECTION,
        "rescaling decided by the first lane",
        "__any_sync(0xffffffff, growth != 1.0f)",
        "__shfl_sync(0xffffffff, growth, 0) != 1.0f",
    ),
    _in(SOFTMAX, "l not rescaled", "l = growth * l + sum;", "l = l + sum;"),
    _in(SOFTMAX, "mask off by one", "if (i >= seen)", "if (i > seen)"),
    _in(SOFTMAX, "a tile on the diagonal taken for unmasked", "if (j >= whole)", "if (j > whole)"),
    _in(
        SOFTMAX,
        "rows of the second tile taken for the first's",
        "const int row = tile.first_row + t * ROWS + mine, end",
        "const int row = tile.first_row + mine, end",
    ),
    _in(EXPONENTIALS, "exponent of the cubic off by one", "12582912.0f + 127.0f", "12582912.0f + 128.0f"),
    _in(EXPONENTIALS, "fraction of the cubic rounded to nearest", "add_down(x, both(WHOLE))", "add(x, both(WHOLE))"),
    _in(EXPONENTIALS, "no least argument of the cubic", "maximum_or_nan(x.x, -127.0f)", "x.x"),
)
_WORK = (
    _in(
        KERNEL,
        "grouped heads by tiling instead of repetition",
        "tile.head / p.heads_per_kv_head",
        "tile.head % (p.heads / p.heads_per_kv_head)",
    ),
    _in(ROWS, "no tile of keys for rows that see none", "+ BC - 1) / BC, 1);", "+ BC - 1) / BC, 0);"),
    _in(
        INSPECTION,
        "one lane announces what others have read",
        "some = 1;\n        __syncwarp();\n",
        "some = 1;\n",
        sanitize=True,
    ),
    _in(INSPECTION, "infinity in V loses its sign", "v > 0.0f ? PLUS : MINUS", "PLUS"),
    _in(INSPECTION, "NaN and infinity in V dropped", "        atomicMin(", "        if (false) atomicMin("),
)
SCHEDULE = (
    _in(
        ROWS,
        "next tile requested while the last answer is read",
        "        next.wait_until_empty(round);\n",
        "",
        sanitize=True,
    ),
    _in(ROWS, "answer read before it is there", "        next.wait_until_full(round);\n", "", sanitize=True),
    _in(
        ROWS,
        "answer given back before it is read",
        "        const int index = cancelled_block(response);\n"
        "        publish_to_async();  // the next response is written by the asynchronous proxy\n"
        "        next.release();\n",
        "        next.release();\n"
        "        const int index = cancelled_block(response);\n"
        "        publish_to_async();  // the next response is written by the asynchronous proxy\n",
        sanitize=True,
    ),
    _in(
        ROWS,
        "bytes of the answer not waited for",
        "        arrive_and_expect(next.is_full.barrier, RESPONSE_BYTES);\n",
        "        next.publish();\n",
        sanitize=True,
    ),
    _in(
        ROWS,
        "softmax of the second tile given no say",
        "READERS = 3 * WARPGROUP",
        "READERS = 2 * WARPGROUP",
        sanitize=True,
    ),
)
"""Mistakes in the order of requests, answers and their readers. The sanitizer names the lines of both accesses."""
_TAKEN = (
    _in(
        LAUNCH_CONTROL,
        "block of a refusal taken",
        '"@is_cancelled clusterlaunchcontrol',
        '"clusterlaunchcontrol',
    ),
    _in(
        ROWS, "a tile more than were cancelled", "return index;", "return index < 0 ? index : index - 1;", sanitize=True
    ),
)

MUTANTS = (*_TENSOR_MEMORY, *_SHARED_MEMORY, *_PRODUCTS, *_SOFTMAX, *_WORK, *SCHEDULE, *_TAKEN)
