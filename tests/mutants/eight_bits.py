"""Factors of e4m3: scales, the order of V's keys, P's offset, what is not finite. fa3-fp8, which is CUDA alone."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

FOLDER = "attention/fa3_fp8"
KERNEL, FACTORS, NOT_FINITE = f"{FOLDER}/kernel.cu", f"{FOLDER}/factors.cu", f"{FOLDER}/not_finite.cuh"
NUMBERS, TILES, SOFTMAX = "_hopper/e4m3.cuh", "_hopper/e4m3_tiles.cuh", "_hopper/softmax.cuh"


def _in(file: str, bug: str, old: str, new: str, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "fa3-fp8-cupy", (Patch(file, old, new),), sanitize)


_SCALES = (
    _in(KERNEL, "scale of V left out", "scales[p.packs.count + kv_heads + kv_head] >> 1", "0"),
    _in(
        KERNEL,
        "scale of K for V",
        "scales[p.packs.count + kv_heads + kv_head]",
        "scales[p.packs.count + kv_head]",
    ),
    _in(NUMBERS, "scale half as large", "- 127 - 8;", "- 127 - 9;"),
    _in(
        FACTORS, "a scale per run of rows", "largest_of_runs[run.block - run.of_head + e]", "largest_of_runs[run.block]"
    ),
    _in(FACTORS, "sign of the scale dropped", "    if (run.tensor == 0) factor.y *= sign;\n", ""),
)
_ORDER = (
    _in(
        FACTORS,
        "keys of V in the order of memory",
        "const int key = key_of_place(4 * word + i);",
        "const int key = 4 * word + i;",
    ),
    _in(NOT_FINITE, "NaN of V in the order of memory", "sees(h, key_of_place(place))", "sees(h, place)"),
    _in(TILES, "steps twice as long", "+ step % (BOX / 32) * 2;", "+ step % (BOX / 32) * 4;"),
    _in(
        FACTORS,
        "padding of rows left as it was",
        "if (e < end) to[e] = rounded;",
        "if (e < end && piece < pieces) to[e] = rounded;",
    ),
)
_WEIGHTS = (
    _in(KERNEL, "P's offset left in lse", "(rows.m[h] - WEIGHT_OFFSET) * LN_2", "rows.m[h] * LN_2"),
    _in(KERNEL, "P beyond the largest number", "WEIGHT_OFFSET = 6,", "WEIGHT_OFFSET = 8,"),
    _in(
        KERNEL,
        "O corrected where one row calls for it",
        "__any_sync(0xffffffff, correction[0]",
        "__all_sync(0xffffffff, correction[0]",
    ),
    _in(KERNEL, "m kept however large P is", "largest > LARGEST_WEIGHT", "largest > LARGEST_ADDEND"),
    _in(KERNEL, "exponentials left beyond float", "__any_sync(0xffffffff, largest > LARGEST_ADDEND)", "false"),
    _in(
        SOFTMAX,
        "sums of the tile left out as m rises",
        "(rows.l[h] + sums[h]) * correction[h]",
        "rows.l[h] * correction[h]",
    ),
    _in(
        KERNEL,
        "O corrected before P V is there",
        "        wait_for_products<0>(rows.O);\n        if (consumer.leads && step > first_step)",
        "        if (consumer.leads && step > first_step)",
    ),
)
_NOT_FINITE = (
    _in(FACTORS, "infinity for the largest magnitude", "if (high < EXPONENT) largest = larger(largest, high);",
        "largest = larger(largest, high);"),
    _in(FACTORS, "infinity in K for NaN", "of_K ? 0.0f : __int_as_float(0x7fffffff);", "__int_as_float(0x7fffffff);"),
    _in(KERNEL, "infinity in the last keys dropped", "    if (infinite_K) add_infinities_of_K();\n", ""),
)  # fmt: skip

MUTANTS = (*_SCALES, *_ORDER, *_WEIGHTS, *_NOT_FINITE)
