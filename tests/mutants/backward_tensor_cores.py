"""Gradients on tensor cores: fragments, copies on their way, and once more what goes wrong in any backward pass."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

PLAN, KEYS, PREPARE, ROUND = (f"_mma_backward/{name}" for name in ("__init__.py", "keys.cu", "prepare.cu", "round.cu"))
SCORING, PRODUCTS, SEEN, TURNS, SHARES, DQ = (
    f"_mma_backward/{name}.cuh" for name in ("scoring", "products", "seen", "turns", "shares", "dq")
)
ROWS = "attention_backward/mma_ordered/kernel.cu"


def _of_keys(bug: str, *changes: tuple[str, str], file: str = KEYS, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "bwd-mma-cupy", tuple(Patch(file, *change) for change in changes), sanitize)


def _of_scores(bug: str, *changes: tuple[str, str], sanitize: bool = False) -> Mutant:
    return _of_keys(bug, *changes, file=SCORING, sanitize=sanitize)


def _of_visits(bug: str, *changes: tuple[str, str]) -> Mutant:
    return _of_keys(bug, *changes, file=TURNS)


def _of_limits(bug: str, *changes: tuple[str, str]) -> Mutant:
    return _of_keys(bug, *changes, file=SEEN)


def _of_products(bug: str, *changes: tuple[str, str], sanitize: bool = False) -> Mutant:
    return _of_keys(bug, *changes, file=PRODUCTS, sanitize=sanitize)


def _of_rows(bug: str, *changes: tuple[str, str], sanitize: bool = False) -> Mutant:
    return Mutant(bug, "bwd-mma-ordered-cupy", tuple(Patch(ROWS, *change) for change in changes), sanitize)


_FORMULAS = (
    _of_scores("D left out", ("kept.minus(dP[i][j][c], c % 2 ? D_j.y : D_j.x,", "kept.minus(dP[i][j][c], 0.0f,")),
    _of_scores("D of the row beside", ("c % 2 ? D_j.y : D_j.x", "c % 2 ? D_j.x : D_j.y")),
    _of_scores("log-sum-exp of the row beside", ("-(c % 2 ? L_j.y : L_j.x)", "-L_j.x")),
    _of_keys(
        "P from a log-sum-exp to base e",
        ("L[first_stat + r] = 1.44269504f * lse", "L[first_stat + r] = lse"),
        file=PREPARE,
    ),
    _of_keys(
        "D without the last elements of a row",
        ("if (chunk * CHUNK >= D)", "if (chunk * CHUNK + CHUNK > D)"),
        file=PREPARE,
    ),
    _of_keys("half of a row's lanes left out of D", ("other = LANES / 2", "other = LANES / 4"), file=PREPARE),
    _of_keys(
        "scale missing on dQ",
        ("packed(tau * c[2 * h], tau * c[2 * h + 1])", "packed(c[2 * h], c[2 * h + 1])"),
        file=ROUND,
    ),
    _of_keys(
        "scale missing on dK", ("gather(chip.K_tile, sums[SUMS - 1], tau,", "gather(chip.K_tile, sums[SUMS - 1], 1.0f,")
    ),
    _of_keys("scale on dV", ("gather(chip.V_tile, sums[0], dropout.factor(),", "gather(chip.V_tile, sums[0], tau,")),
    _of_visits("group not summed", ("heads * tiles + LAG", "tiles + LAG")),
    _of_keys(
        "group's heads mapped by tiling",
        (
            "const size_t first = (block.first_head() + turn.head) * block.all_rows",
            "const size_t first = (block.first_head() / block.group + turn.head * gridDim.x) * block.all_rows",
        ),
    ),
    _of_keys(
        "dQ not zeroed",
        ("+ e) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);", "+ e) = make_float4(0.0f, 0.0f, 0.0f, 1.0f);"),
        file=PREPARE,
    ),
)
_MASKS = (
    _of_scores("mask not repeated", ("if (!by_all) mask(", "if (*block.not_finite) mask(")),
    _of_keys(
        "window before and after mixed up",
        ("limits, dropout = features.mirrored_limits(problem)", "limits, dropout = features.limits(problem)"),
        file=PLAN,
    ),
    _of_limits(
        "causal off by one in tiles that are masked",
        ("return {own - seen.after,", "return {own - seen.after - 1,"),
    ),
    _of_limits(
        "a tile on the diagonal taken for unmasked",
        ("of.key + of.keys <= seen.end(of.row)", "of.key + of.keys <= seen.end(of.last_row)"),
    ),
    _of_limits("keys on the diagonal skipped", ("of.key < seen.end(of.last_row)", "of.key < seen.end(of.row)")),
    _of_scores(
        "dS of a warp whose keys nobody sees left as it was",
        ("store_weights(to, dS);", "if (by_some) store_weights(to, dS);"),
    ),
    _of_visits("last tile of rows left out", ("(end + BR - 1) / BR - tile", "end / BR - tile")),
    _of_visits(
        "first tile of rows left out", ("const int tile = first / BR,", "const int tile = (first + BR - 1) / BR,")
    ),
    _of_keys("NaN in dO reaches keys behind the mask", (" || copied_not_finite_anew<BR, AT_ONCE>(dO_tile)", "")),
    _of_keys(
        "NaN in K reaches rows that do not see it", ("if (found && threadIdx.x < BC)", "if (found && threadIdx.x < 0)")
    ),
    _of_rows(
        "NaN in K reaches rows that do not see it",
        ("if (__syncthreads_or(copied_not_finite<BC>(K_tile)))", "if (__syncthreads_or(0))"),
    ),
    _of_rows(
        "causal off by one in tiles that are masked",
        ("min(on + seen.after + 1, seen.kv_len", "min(on + seen.after, seen.kv_len"),
    ),
    _of_rows(
        "last tile of keys left out of dQ",
        ("end_tile = (seen.end_key + BC - 1) / BC;", "end_tile = seen.end_key / BC;"),
    ),
    _of_rows(
        "a tile that lacks one key taken for unmasked",
        ("key + KEYS_AT_ONCE > warp_sees.end_by_all", "key + KEYS_AT_ONCE > warp_sees.end_by_all + 1"),
    ),
)
_FRAGMENTS = (
    _of_products(
        "registers of P in the order of C",
        ("W[j / 2][i][j % 2 * 2 + h] = packed", "W[j / 2][i][2 * h + j % 2] = packed"),
    ),
    _of_scores(
        "dS stored in the place of the eight rows beside",
        ("in_A<W_ROW_BYTES>(lane) + warps_key", "(in_A<W_ROW_BYTES>(lane) ^ 16) + warps_key"),
    ),
    _of_scores(
        "keys g and g + 8 of dS swapped",
        ("in_A<W_ROW_BYTES>(lane) + warps_key", "in_A<W_ROW_BYTES>(lane ^ 8) + warps_key"),
    ),
    _of_scores(
        "dS of the warp beside", ("lane) + warps_key * W_ROW_BYTES", "lane) + (warps_key ^ WARP_KEYS) * W_ROW_BYTES")
    ),
    _of_products("dS not transposed", ("load_matrices_transposed(ds[i],", "load_matrices(ds[i],")),
    _of_keys(
        "rows g and g + 8 of dQ swapped",
        ('"f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3])', '"f"(c[2]), "f"(c[3]), "f"(c[0]), "f"(c[1])'),
        file=DQ,
    ),
    _of_products(
        "dQ of the columns beside",
        ("2 * k * DQ_GROUPS + e) * FRAGMENT, part", "2 * k * DQ_GROUPS + 1 - e) * FRAGMENT, part"),
    ),
    _of_scores("dK from P", ("add_Wt_Y(sums[SUMS - 1], dS[s],", "add_Wt_Y(sums[SUMS - 1], P[s],")),
    _of_scores(
        "weights for dV where those for dK are", ("W_tile + own.of_dV * W_BYTES", "W_tile + !own.of_dV * W_BYTES")
    ),
    _of_keys(
        "half of the columns of a warp that sums", ("own % COLUMN_GROUPS * SUM_STEPS, warp", "0, warp"), file=SHARES
    ),
    _of_rows("D of rows g for rows g + 8", ("D_i[i][c / 2], factor", "D_i[i][0], factor")),
    _of_rows("K not transposed", ("load_matrices_transposed(key,", "load_matrices(key,")),
)
_COPIES = (
    _of_keys(
        "no barrier before the next rows are copied",
        (
            "        } else {\n            __syncthreads();\n        }\n        if (turn.number + 1",
            "        }\n        if (turn.number + 1",
        ),
        sanitize=True,
    ),
    _of_scores(
        "dS stored where that of the step before is read",
        (
            "const unsigned W_tile = block.chip.dS_tile(turn.number);",
            "const unsigned W_tile = block.chip.dS_tile(turn.number + 1);",
        ),
        sanitize=True,
    ),
    _of_keys("rows copied to the stage that is read", ("STAGES = HANDS_WEIGHTS ? 3 : 2;", "STAGES = 1;"), file=SHARES),
    _of_keys(
        "rows copied to the stage that is summed",
        ("STAGES = HANDS_WEIGHTS ? 3 : 2;", "STAGES = 2;"),
        file=SHARES,
        sanitize=True,
    ),
    _of_keys(
        "copies not waited for",
        ("wait_for_copies<0>();\n        if (!all_seen", "wait_for_copies<1>();\n        if (!all_seen"),
    ),
    _of_visits(
        "dQ of the step's own rows",
        ("(is_first ? end_row() : turn.first_row) - BR}", "(is_first ? end_row() : turn.first_row)}"),
    ),
    _of_keys(
        "no barrier before dK is gathered where K was",
        ("    __syncthreads();\n    const Share own", "    const Share own"),
        sanitize=True,
    ),
    _of_keys(
        "dQ added without atomics",
        (
            'asm volatile("red.global.add.v4.f32',
            'for (int e = 0; e < 4; ++e) to[e] += c[e];\n        if (false) asm volatile("red.global.add.v4.f32',
        ),
        file=DQ,
        sanitize=True,
    ),
    _of_rows(
        "no barrier before the next keys are copied",
        (
            "        } else {\n            __syncthreads();\n        }\n        copy_keys",
            "        }\n        copy_keys",
        ),
        sanitize=True,
    ),
    _of_rows(
        "no barrier before dQ is stored",
        ("    __syncthreads();\n    store_tile<BR>(dQ", "    store_tile<BR>(dQ"),
        sanitize=True,
    ),
)
MUTANTS = (*_FORMULAS, *_MASKS, *_FRAGMENTS, *_COPIES)
