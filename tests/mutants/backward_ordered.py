"""A fixed order of sums on warpgroups: turns that are not begun, not passed or another's, and the places of what a
thread adds for all warps. In both languages, by the same names."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

_FOLDER = "attention_backward/fa3"
_FILES = {
    "kernel": ("kernel.cu", "numba_kernel.py"),
    "chip": ("chip.cuh", "numba_chip.py"),
    "products": ("products.cuh", "numba_products.py"),
}
_PREPARE = ("_mma_backward/prepare.cu", "_mma_backward/numba_ends.py")


def _both(
    place: str, bug: str, cuda: tuple[str, str], numba: tuple[str, str], sanitize: bool = False
) -> tuple[Mutant, ...]:
    files = [f"{_FOLDER}/{file}" for file in _FILES[place]] if place in _FILES else _PREPARE
    return tuple(
        Mutant(bug, f"bwd-fa3-ordered-{language}", (Patch(file, *change),), sanitize)
        for language, file, change in zip(("cupy", "numba"), files, (cuda, numba))
    )


MUTANTS = (
    *_both(
        "kernel",
        "turn kept",
        ("pass_turn(turn, number + 1);", "pass_turn(turn, number);"),
        ("pass_turn(turn, int32(number + 1))", "pass_turn(turn, number)"),
    ),
    *_both(
        "kernel",
        "a block waited for that has no part",
        ("rows.end(first_key - 1)", "rows.end(first_key)"),
        ("end_of(rows, int32(first_key - 1))", "end_of(rows, first_key)"),
    ),
    *_both(
        "prepare",
        "turns not begun",
        ("if (threadIdx.x == 0) *order.turn(head, first_row, q_len) = 0;", ""),
        ("        begin_all_turns(order, q_len, first_row)\n", ""),
        sanitize=True,
    ),
    *_both(
        "kernel",
        "parts of dQ added before they are all there",
        ("        barriers.wait_until_dQ_is_full(n);\n", ""),
        ("            wait_until_dQ_is_full(barriers, n)\n", ""),
        sanitize=True,
    ),
    *_both(
        "kernel",
        "places of dQ given back before they are read",
        ("        wait_until_read();\n        barriers.release_dQ(n);\n", "        barriers.release_dQ(n);\n"),
        (
            "            wait_until_read()\n            release_dQ(barriers, n)\n",
            "            release_dQ(barriers, n)\n",
        ),
        sanitize=True,
    ),
    *_both(
        "products",
        "a part of dQ stored where the one before is added from",
        ("        if (lane == 0) barriers.wait_until_dQ_is_empty(n);\n", ""),
        ("                    wait_until_dQ_is_empty(barriers, n)\n", "                    pass\n"),
        sanitize=True,
    ),
    *_both(
        "products",
        "the last rows of dQ not added",
        ("min(BR, q_len - first_row + 15) / 16", "min(BR, q_len - first_row) / 16"),
        ("int32(q_len - first_row + 15)", "int32(q_len - first_row)"),
    ),
    *_both(
        "chip",
        "tiles of rows counted back from the one behind the last",
        ("1 - tile - tiles) : tile", "-tile - tiles) : tile"),
        ("int32(1 - tile - tiles)", "int32(-tile - tiles)"),
    ),
)
