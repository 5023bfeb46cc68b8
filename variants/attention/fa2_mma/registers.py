"""How the 255 registers of a thread are shared out: numbers with which nothing spills, found by trying them out."""

from __future__ import annotations

from harness import Problem
from variants._features import changes_scores, has_spans
from variants._mma import MmaTile

ROOMY_PART = 176
"""Elements of S and O together that leave a thread room for more than products: for what rows see, and for scores."""
KEPT_REGISTERS = 176
"""Registers for S, O and the part of Q that is kept in registers."""
BESIDE_SCORING = 168
"""`KEPT_REGISTERS` if scores change before the mask."""
BESIDE_VISITS = 144
"""`KEPT_REGISTERS` if tiles are listed."""
BESIDE_WINDOW = 152
"""`KEPT_REGISTERS` if the first and the last tile of a window are visited at once."""
BESIDE_DROPOUT = 160
"""`KEPT_REGISTERS` with dropout, which draws several numbers at once."""

BESIDE_FIVE_STEPS = 160
"""`KEPT_REGISTERS` if Q K^T is summed in five steps of 16 elements."""


def registers(problem: Problem, tile: MmaTile, ends_at_once: bool) -> dict[str, int]:
    """Return the compile-time parameters of registers.cuh."""
    one_body = has_one_body(problem, tile)
    spares = (has_spans(problem) and 112 < problem.head_dim <= 128) or (ends_at_once and problem.head_dim <= 64)
    warps_write = (one_body or spares) and tile.Br == 32 * tile.warps
    return {
        "KEPT_REGISTERS": kept_registers(problem, ends_at_once),
        "ONE_BODY": int(one_body),
        "WARPS_WRITE": int(warps_write),
        "SUMS": sums(problem, ends_at_once),
        **computed_again(problem, ends_at_once),
    }


def kept_registers(problem: Problem, ends_at_once: bool) -> int:
    """Registers for S, O and as much of Q as fits: fewer with features that need some themselves."""
    beside = (
        (changes_scores(problem), BESIDE_SCORING),
        (not problem.mask.is_run, BESIDE_VISITS),
        (problem.dropout > 0, BESIDE_DROPOUT),
        (ends_at_once, BESIDE_WINDOW),
        (64 < problem.head_dim <= 80, BESIDE_FIVE_STEPS),
    )
    return min((left for is_there, left in beside if is_there), default=KEPT_REGISTERS)


def has_one_body(problem: Problem, tile: MmaTile) -> bool:
    """Whether masked tiles and others share their code. Two bodies of the loop take a few registers more."""
    return tile.part(problem.head_dim) > ROOMY_PART and not problem.dropout


def sums(problem: Problem, ends_at_once: bool) -> int:
    """Sums in which a lane looks for NaN in V: each addition waits for the one before in the same sum."""
    reads_what_rows_see = has_spans(problem) or not problem.mask.is_run
    has_room = problem.head_dim <= 64 and not (reads_what_rows_see or ends_at_once or problem.alibi)
    crowded = has_spans(problem) and problem.mask.is_run and problem.alibi and 112 < problem.head_dim <= 128
    return 2 if (problem.dropout and not crowded) or has_room else 1


def computed_again(problem: Problem, ends_at_once: bool) -> dict[str, int]:
    """What is computed again where it is needed, and not kept in registers.

    That is the warp's rows, and where the rows of K and V, and of O, begin. Which of these leaves ptxas without spills
    was found by trying.
    """
    spans, narrow = has_spans(problem), problem.head_dim <= 64
    of_sinks, capped = spans and problem.sinks, problem.softcap is not None
    of_lists = bool(problem.dropout) and not problem.mask.is_run
    keys = of_sinks or of_lists or (narrow and problem.alibi and not capped and not problem.sinks)
    drops = problem.dropout > 0
    has_room = ends_at_once or (drops and (80 < problem.head_dim <= 96 or 112 < problem.head_dim <= 128))
    keys = keys or (problem.sinks and not narrow and not has_room)
    of_caps = spans and capped and drops and 112 < problem.head_dim <= 128
    output = of_sinks or of_lists or (ends_at_once and problem.head_dim > 112) or (capped and not spans and not narrow)
    output = output or (problem.alibi and not narrow and (problem.sinks or problem.head_dim <= 112))
    output = output or (spans and 64 < problem.head_dim <= 96 and not set(problem.compiled_features) - {"softcap"})
    rows = of_sinks and (problem.head_dim <= 80 or not drops)
    rows = rows or (not spans and (problem.blocks is None or problem.head_dim != 128))
    return {"ROW_AGAIN": int(rows), "KV_AGAIN": int(keys or of_caps), "STAT_AGAIN": int(output or of_caps)}
