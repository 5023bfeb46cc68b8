"""The mistakes of backward_hopper.py in bwd-fa3's twin from Python: the same bugs, by the same names."""

from __future__ import annotations

from tests.mutants.backward_hopper import FOLDER, SWAPPED_ROLES
from tests.mutants.patching import Mutant, Patch

KERNEL, CHIP, PRODUCTS, SCORING, NOT_FINITE = (
    f"{FOLDER}/numba_{name}.py" for name in ("kernel", "chip", "products", "scoring", "not_finite")
)


def _in(file: str, bug: str, *changes: tuple[str, str], sanitize: bool = False) -> Mutant:
    return Mutant(bug, "bwd-fa3-numba", tuple(Patch(file, *change) for change in changes), sanitize)


_FORMULAS = (
    _in(SCORING, "statistics of the row beside, on warpgroups", ("-L[2 * j + e]", "-L[2 * j]")),
    _in(SCORING, "L added to scores, on warpgroups", ("tau2, -L[", "tau2, L[")),
    _in(
        SCORING,
        "D missing from dS, on warpgroups",
        ("(dP[4 * j + 2 * h] - D_low)", "dP[4 * j + 2 * h]"),
        ("(dP[4 * j + 2 * h + 1] - D_high)", "dP[4 * j + 2 * h + 1]"),
    ),
    _in(SCORING, "D added in front of dP", ("= -D_low, -D_high", "= D_low, D_high")),
    _in(KERNEL, "scale missing on dK, on warpgroups", ("write_keys(dK_j, tau,", "write_keys(dK_j, ONE,")),
    _in(KERNEL, "scale on dV, on warpgroups", ("write_keys(dV_j, ONE,", "write_keys(dV_j, tau,")),
    _in(
        KERNEL,
        "group's heads mapped by tiling, on warpgroups",
        (
            "first_row(visit), int32(block.first_head + visit.head)",
            "first_row(visit), int32(uint32(block.first_head) // uint32(2) + visit.head)",
        ),
    ),
)
_MASKS = (
    Mutant("rows and keys of the mask mixed up", "bwd-fa3-numba", SWAPPED_ROLES),
    _in(SCORING, "causal off by one in tiles that are masked", ("8 * j + e >= first and", "8 * j + e > first and")),
    _in(
        SCORING,
        "the second eight keys masked like the first",
        ("int32(warps_key + uint32(8 * h) + (lane", "int32(warps_key + (lane"),
    ),
    _in(
        KERNEL,
        "tiles on an edge of the mask taken for whole",
        ("cut = not all_see(block.seeing, pairs)", "cut = False"),
    ),
    _in(
        CHIP,
        "the last tile of rows left out",
        ("uint32(end + BR - 1) // uint32(BR)", "uint32(end) // uint32(BR)"),
    ),
    _in(
        KERNEL,
        "dS not masked, on warpgroups",
        ("            mask(dP, block.seeing, first_key, row)\n", ""),
    ),
)
_NOT_FINITE = (
    _in(
        KERNEL,
        "rows that are not finite multiplied by zeros, on warpgroups",
        (
            "            in_tile, keys_not_finite = clear_all_not_finite(chip, n, S, dP, keys_not_finite)\n",
            "            in_tile = False\n",
        ),
    ),
    _in(
        NOT_FINITE,
        "keys that are not finite multiplied by zeros, on warpgroups",
        ("            in_K = clear_not_finite(chip, BC, row)\n", "            pass\n"),
    ),
)
_ROLES = (
    _in(
        KERNEL,
        "statistics not waited for",
        ("expect_dO(barriers, n, ROWS_BYTES + STAT_BYTES)", "expect_dO(barriers, n, ROWS_BYTES)"),
        sanitize=True,
    ),
    _in(
        KERNEL,
        "a stage of Q filled while it is read, on warpgroups",
        ("            wait_until_Q_is_empty(barriers, n)\n", ""),
        sanitize=True,
    ),
    _in(
        CHIP,
        "one consumer speaks for both",
        ("init_dO(barriers, WARPS)", "init_dO(barriers, 1)"),
        sanitize=True,
    ),
    _in(
        KERNEL,
        "dS multiplied before the other consumer has stored it",
        (
            "            wait_for_dS(barriers, before.number)\n",
            "",
        ),
        sanitize=True,
    ),
    _in(
        KERNEL,
        "a tile of dS stored while it is read",
        ("        wait_until_dS_is_empty(barriers, n)\n", ""),
        sanitize=True,
    ),
    _in(
        KERNEL,
        "dS not published",
        ("        publish_to_async()\n        cuda.syncwarp", "        cuda.syncwarp"),
        sanitize=True,
    ),
    _in(
        PRODUCTS,
        "a part of dQ overwritten while it is added",
        ("                wait_until_read()  # what", "                pass  # what"),
        sanitize=True,
    ),
    _in(
        CHIP,
        "dQ of every tile by one consumer only",
        (
            "int32(uint32(n) % uint32(CONSUMERS)) == consumer",
            "int32(uint32(n) % uint32(CONSUMERS)) == 0 and consumer == 0",
        ),
    ),
    _in(
        PRODUCTS,
        "dQ read before it is there",
        ("wait_for_products(2, columns // 2)", "wait_for_products(3, columns // 2)"),
        sanitize=True,
    ),
    _in(
        PRODUCTS,
        "columns of dQ by the second consumer added to those of the first",
        ("uint32(WARP_DQ_BYTES if HALVE_COLUMNS else 0)", "uint32(0)"),
    ),
    _in(
        PRODUCTS,
        "dQ added to the rows beside",
        ("uint32(row) >> uint32(4)) * uint64(ROWS", "uint32(row - first_row) >> uint32(4)) * uint64(ROWS"),
    ),
)
MUTANTS = (*_FORMULAS, *_MASKS, *_NOT_FINITE, *_ROLES)
