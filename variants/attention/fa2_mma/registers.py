"""How the 255 registers of a thread are shared out: numbers with which nothing spills, found by trying them out."""

from __future__ import annotations

from typing import Any

from harness import Problem
from variants._features import V_WIDTH_FEATURE, changes_scores, has_spans
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

BESIDE_LONG_QUERIES = 152
"""`KEPT_REGISTERS` if rows of Q and K are longer than those of V and O, so that more of Q has room."""
BESIDE_ADDRESSES = 152
"""`KEPT_REGISTERS` if rows are found by strides, or if rows of V and O are longer than those of Q and K."""
BESIDE_FIVE_STEPS = 160
"""`KEPT_REGISTERS` if Q K^T is summed in five steps of 16 elements."""
BESIDE_FIVE_STEPS_AND_SLOPES = 152
"""The same under ALiBi with sinks or dropout."""
FASTEST: dict[int, dict[tuple[str, ...], dict[str, Any]]] = {
    64: {("band",): {"again": (0, 0, 0, 0), "sums": 1, "warps_write": True}, ("band", "alibi"): {"kept": 176}},
    96: {("band",): {"kept": 160, "again": (0, 1, 0, 0)}},
    128: {
        ("band", "softcap"): {"kept": 192},
        ("band", "alibi"): {"again": (1, 0, 1, 0)},
        ("spans",): {"sums": 2},
        ("window",): {"sums": 2},
    },
}
"""What takes least time on an H200, by elements per row, mask and features; else the functions below choose."""
COMPUTED_AGAIN = {
    128: {
        ("band", "sinks"): (0, 1, 1, 1),
        ("band", "softcap", "dropout"): (0, 1, 0, 1),
        ("band", "alibi", "dropout"): (0, 1, 0, 0),
        ("band", "alibi", "dropout", "layout"): (1, 1, 1, 0),
        ("spans", "dropout"): (1, 1, 1, 1),
        ("flashmask", "dropout"): (1, 1, 1, 1),
    },
    112: {
        ("band", "dropout"): (0, 1, 0, 1),
        ("band", "softcap", "dropout"): (0, 0, 0, 1),
        ("band", "alibi", "dropout"): (0, 1, 0, 0),
        ("band", "sinks", "dropout"): (1, 1, 1, 1),
        ("spans", "dropout"): (0, 1, 1, 1),
    },
}
"""`computed_again` by `padded_row`, for masks and features whose spills its rules would leave."""
ONE_BODY = {
    128: {("band", "alibi", "dropout")},
    112: {("band", "dropout"), ("band", "alibi", "dropout"), ("band", "sinks", "dropout")},
}
"""Which of these have one body of the loop, as well."""


def forms(problem: Problem, tile: MmaTile, ends_at_once: bool) -> str:
    """Return the type in registers.cuh that says which form of the kernel's parts this problem has room for."""
    one_body = has_one_body(problem, tile)
    d = _longest_row(problem)
    spares = (has_spans(problem) and 112 < d <= 128) or (ends_at_once and d <= 64)
    spares = spares or "warps_write" in _fastest(problem, ends_at_once)
    warps_write = ((one_body and not problem.dropout) or spares) and tile.Br == 32 * tile.warps
    return f"FormsOf<{int(one_body)}, {int(warps_write)}, {sums(problem, ends_at_once)}>"


def kept_registers(problem: Problem, ends_at_once: bool) -> int:
    """Registers for S, O and as much of Q as fits: fewer with features that need some themselves."""
    more, d = problem.sinks or problem.dropout > 0, _longest_row(problem)
    beside = (
        (changes_scores(problem), BESIDE_SCORING),
        (not problem.mask.is_run, BESIDE_VISITS),
        (problem.dropout > 0, BESIDE_DROPOUT),
        (ends_at_once, BESIDE_WINDOW),
        (problem.v_width < problem.head_dim, BESIDE_LONG_QUERIES),
        (not problem.layout.is_dense or problem.v_width > problem.head_dim, BESIDE_ADDRESSES),
        (64 < d <= 80, BESIDE_FIVE_STEPS),
        (64 < d <= 80 and problem.alibi and more, BESIDE_FIVE_STEPS_AND_SLOPES),
    )
    usual = min((left for is_there, left in beside if is_there), default=KEPT_REGISTERS)
    return int(_fastest(problem, ends_at_once).get("kept", usual))


def has_one_body(problem: Problem, tile: MmaTile) -> bool:
    """Whether masked tiles and others share their code. Two bodies of the loop take a few registers more."""
    if problem.dropout:
        return features_of_registers(problem) in ONE_BODY.get(padded_row(problem), ())
    return tile.part(problem.v_width) > ROOMY_PART


def sums(problem: Problem, ends_at_once: bool) -> int:
    """Sums in which a lane looks for NaN in V: each addition waits for the one before in the same sum."""
    d = _longest_row(problem)
    reads_what_rows_see = has_spans(problem) or not problem.mask.is_run
    has_room = d <= 64 and not (reads_what_rows_see or ends_at_once or problem.alibi) and problem.layout.is_dense
    crowded = has_spans(problem) and problem.mask.is_run and problem.alibi and 112 < d <= 128
    usual = 2 if (problem.dropout and not crowded) or has_room else 1
    return int(_fastest(problem, ends_at_once).get("sums", usual))


def computed_again(problem: Problem, ends_at_once: bool) -> str:
    """Return the type in registers.cuh that says what is computed again where it is needed, and not kept in registers.

    That is the warp's rows, where the rows of K and V, and of O, begin, and what a thread copies of K and V. Which of
    these leaves ptxas without spills was found by trying.
    """
    chosen = COMPUTED_AGAIN.get(padded_row(problem), {}).get(features_of_registers(problem))
    chosen = _fastest(problem, ends_at_once).get("again", chosen)
    if chosen is not None and not ends_at_once:
        return f"ComputedAgain<{', '.join(map(str, chosen))}>"
    d, spans, sinks, alibi = _longest_row(problem), has_spans(problem), problem.sinks, problem.alibi
    narrow, capped, drops = d <= 64, problem.softcap is not None, problem.dropout > 0
    band = problem.mask.is_run and not spans
    strided = band and not problem.layout.is_dense and 112 < d <= 128 and (capped or sinks or not alibi)
    of_sinks, of_lists = spans and sinks, drops and not problem.mask.is_run
    of_caps = spans and capped and drops and 112 < d <= 128
    of_spans = spans and capped and not drops
    documents_drop = drops and spans and problem.mask.is_run and not problem.score_features and 80 < d <= 96
    copies = documents_drop or (drops and 64 < d <= 80)

    has_room = ends_at_once or (drops and 80 < d <= 96) or (112 < d <= 128 and (drops or alibi))
    keys = of_sinks or of_lists or of_caps or copies or (narrow and alibi and not capped and not sinks)
    keys = keys or (sinks and not narrow and not has_room) or (of_spans and 64 < d <= 80)
    keys = keys or strided or problem.v_width > problem.head_dim

    output = of_sinks or of_lists or of_caps or documents_drop or (ends_at_once and d == 128) or strided
    output = output or (capped and not spans and not narrow)
    output = output or (alibi and not narrow and (sinks or d <= 112))
    output = output or (spans and 64 < d <= 96 and not set(problem.compiled_features) - {"softcap", V_WIDTH_FEATURE})

    rows = (of_sinks and (d <= 80 or not drops)) or (of_spans and 96 < d <= 128)
    rows = rows or (not spans and (problem.blocks is None or d != 128))
    rows = rows and not strided
    return f"ComputedAgain<{int(rows)}, {int(keys)}, {int(output)}, {int(copies)}>"


def _fastest(problem: Problem, ends_at_once: bool) -> dict[str, Any]:
    mask, *compiled = features_of_registers(problem)
    return FASTEST.get(_longest_row(problem), {}).get(("window" if ends_at_once else mask, *compiled), {})


def _longest_row(problem: Problem) -> int:
    """Elements of the longest rows: what was found for rows of one length holds for shorter ones of V or of K, too."""
    return max(problem.head_dim, problem.v_width)


def padded_row(problem: Problem) -> int:
    """Return how many elements the longest rows have, rounded up to whole steps of 16."""
    return 16 * -(-_longest_row(problem) // 16)


def features_of_registers(problem: Problem) -> tuple[str, ...]:
    """Return what kernels read of a mask (nothing of a band), and the features that are compiled into them."""
    p = problem
    kinds = {"spans": has_spans(p), "blocks": p.blocks is not None, "flashmask": p.flashmask is not None}
    return ("+".join(kind for kind, is_there in kinds.items() if is_there) or "band", *p.compiled_features)
