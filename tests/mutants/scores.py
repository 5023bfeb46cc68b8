"""What becomes of scores before the mask, and sinks: caps, ALiBi, biases, and one more logit per head."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.patching import Mutant, Patch
from tests.mutants.planting import (
    CUDA,
    NUMBA,
    SPLIT,
    Replacement,
    in_cuda_of_mma,
    in_feature,
    in_kernel,
    in_output,
    in_plan,
    in_softmax,
    in_split_kv,
    in_tiles,
    planted,
)

_MMA = "fa2-mma"
_COUNTED_TWICE = "sink counted twice"


def _in_factor(algorithm: str, bug: str, new: str) -> Iterator[Mutant]:
    """Planted in what products are multiplied by, which both backends share."""
    old = "problem.tau if problem.softcap is None else problem.tau / problem.softcap"
    folder = "_features" if algorithm in ("fa2", _MMA) else "_scores"
    for backend in (CUDA, NUMBA):
        yield Mutant(bug, f"{algorithm}-{backend}", (Patch(f"{folder}/__init__.py", old, new),))


def _in_scoring(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    """Planted in what fa2-mma makes of scores."""
    folder = "attention/fa2_mma"
    yield from planted(_MMA, bug, f"{folder}/scoring.cuh", f"{folder}/numba_scoring.py", ((cuda, numba),))


def _in_split_penalty(bug: str, old: str, new: str) -> Mutant:
    """Planted where fa2-mma-cupy splits ALiBi into a row's share and a column's, which its twin does not."""
    return in_cuda_of_mma(bug, old, new, file="attention/fa2_mma/scoring.cuh")


_CAPS = (
    *(
        mutant
        for algorithm in ("fa2", _MMA)
        for mutant in (
            *_in_factor(algorithm, "tanh of the score, not of its share of the cap", "problem.tau"),
            *_in_factor(
                algorithm, "capped before the scale", "problem.tau if problem.softcap is None else 1 / problem.softcap"
            ),
        )
    ),
    *in_feature(
        "two-pass",
        "scores",
        "cap left out",
        ("return cap * tanhf(s);", "return cap * s;"),
        ("return softcap[0] * math.tanh(s)", "return softcap[0] * s"),
    ),
    # Dao-AILab/flash-attention pull request 2402.
    *in_feature(
        "two-pass",
        "scores",
        "score itself for the cap before tanh",
        ("return cap * tanhf(s);", "return s * tanhf(s);"),
        ("return softcap[0] * math.tanh(s)", "return s * math.tanh(s)"),
    ),
    *in_tiles(
        "fa2",
        "capped after the mask",
        (
            "sees ? score(tau * S[i][j], first_row + row_of(i), first_key + key_of(j)) : MINUS_INFINITY;",
            "score(sees ? tau * S[i][j] : MINUS_INFINITY, first_row + row_of(i), first_key + key_of(j));",
        ),
        (
            "scored = score_of(score, tau * S[i, j], first_row + row_of(i), first_key + key_of(j))\n"
            "                S[i, j] = scored if sees else MINUS_INFINITY",
            "scored = tau * S[i, j] if sees else MINUS_INFINITY\n"
            "                S[i, j] = score_of(score, scored, first_row + row_of(i), first_key + key_of(j))",
        ),
    ),
    *(
        mutant
        for algorithm in ("fa2", "three-pass")
        for mutant in in_feature(
            algorithm,
            "scores",
            "capped after ALiBi",
            ("return others(term(s, row, key), row, key);", "return term(others(s, row, key), row, key);"),
            (
                "apply_others(score[1], apply_term(score[0], s, row, key), row, key)",
                "apply_term(score[0], apply_others(score[1], s, row, key), row, key)",
            ),
        )
    ),
    *in_kernel(
        _MMA,
        "capped after the mask",
        (
            "    scoring.template finish<!MASKED>(S, powers);\n    return poisoned;",
            "    if (!MASKED) scoring.template finish<true>(S, powers);\n    return poisoned;",
        ),
        (
            "        unit = finish_scores(S, tau2, scoring, warp_row, first_key, own_key)\n        if masked:\n"
            "            mask(S, keys, place, before, after)\n",
            "        if masked:\n            mask(S, keys, place, before, after)\n"
            "        unit = finish_scores(S, tau2, scoring, warp_row, first_key, own_key)\n",
        ),
        (
            (
                "    if (masked) mask(S, seen);\n",
                "    if (masked) mask(S, seen), scoring.template finish<false>(S, powers);\n",
            ),
            None,
        ),
    ),
    *in_plan(_MMA, "scores capped in powers of two", "unit_of(p) if p.softcap is None else 1.0", "LOG2_E"),
    *in_plan(_MMA, "cap in powers of e", "features.scores(p, unit_of(p))", "features.scores(p)"),
)
_ALIBI = (
    *in_feature(
        "fa2", "scores", "slope's sign",
        ("s - slope * fabsf", "s + slope * fabsf"), ("s - alibi[0] * float32", "s + alibi[0] * float32"),
    ),
    *in_feature(
        "two-pass", "scores", "keys behind the row's place nearer than its own",
        ("slope * fabsf((float)(key - row - offset))", "slope * (float)(row + offset - key)"),
        ("float32(abs(key - row - alibi[1]))", "float32(row + alibi[1] - key)"),
    ),
    *(
        mutant
        for algorithm in ("fa2", "three-pass")
        for mutant in in_feature(
            algorithm, "scores", "distances from a place aligned top-left",
            ("__ldg(slopes + head), kv_len - q_len}", "__ldg(slopes + head), 0}"),
            ("alibi[0][head], kv_len - q_len", "alibi[0][head], 0"),
        )
    ),
    *in_kernel(
        "fa2", "slope of the key/value head",
        ("scores.of_head(head,", "scores.of_head(head / group,"),
        ("score_of_head(scores, head,", "score_of_head(scores, kv_head,"),
    ),
    *(
        mutant
        for algorithm in ("two-pass", "three-pass")
        for mutant in in_kernel(
            algorithm, "slope of the key/value head",
            ("scores.of_head(block.head,", "scores.of_head(block.head / group,"),
            ("score_of_head(scores, block.head,", "score_of_head(scores, kv_head,"),
        )
    ),
    *in_kernel(
        _MMA, "slope of the key/value head",
        ("scoring_of_head(scores, tau, head,", "scoring_of_head(scores, tau, head / group,"),
        ("of_head(scores, head_of_entry(heads),", "of_head(scores, head_of_entry(heads) // uint32(group),"),
    ),
    *_in_scoring(
        "slopes in powers of e",
        ("LOG2_E * find_term<Alibi>", "find_term<Alibi>"),
        ("LOG2_E * (scores[1][0][0][head] if", "(scores[1][0][0][head] if"),
    ),
    *_in_scoring(
        "distances of rows g + 8 from the place of row g",
        ("(float)(place + 16 * i + 8 * h)", "(float)(place + 16 * i)"),
        ("int32(key_of_row(place, i, h) - column))", "int32(key_of_row(place, i, 0) - column))"),
    ),
    *_in_scoring(
        "distances from the first column of four lanes",
        ("place = this->place + lane / 4 - lane % 4 * 2;", "place = this->place + lane / 4;"),
        ("int32(key_of_row(place, i, h) - column)", "int32(key_of_row(place, i, h))"),
    ),
    _in_split_penalty("row's share left out", "return powers.of_row[i][h] + minus_m;", "return minus_m;"),
    _in_split_penalty("row's share to the tile's first key", "lane % 4 * 2 - 4 * TILES);", "lane % 4 * 2);"),
    _in_split_penalty("keys behind taken for keys before", "return place >= 8 * tiles - 1;", "return true;"),
    _in_split_penalty("a key behind taken for one before", "place >= 8 * tiles - 1;", "place >= 8 * tiles - 2;"),
    _in_split_penalty("a key before taken for one behind", "place + 16 * TM - 1 <= 0", "place + 16 * TM - 2 <= 0"),
    in_split_kv("slope of the group's first head", ("group + min(row / own_len, group - 1)", "group")),
    in_split_kv(
        "distances of rows counted through the group",
        ("tau, keys, seen, score, query);", "tau, keys, seen, score, own_rows);"),
    ),
    in_split_kv("distances from the tile's first key", ("query[i], first_key + k)", "query[i], k)"), file=SPLIT),
)  # fmt: skip
_OF_SPLITS = "attention/split_kv/sequences.cuh"
_BIASES = (
    *in_feature(
        "fa2", "scores", "bias of the first head for all",
        ("bias + (size_t)head * head_stride", "bias"), ("values[head if values.shape[0] > 1 else 0]", "values[0]"),
    ),
    *in_feature(
        "fa2", "scores", "bias of the first row for all",
        ("(size_t)min(row, last_row) * row_stride", "(size_t)0"),
        ("min(row, bias[1]) if values.shape[0] > 1 else 0", "0"),
    ),
    *in_feature(
        "fa2", "scores", "bias read behind the last row",
        ("min(row, last_row)", "row"), ("min(row, bias[1])", "row"),
    ),
)  # fmt: skip
_SINKS = (
    *(
        mutant
        for algorithm in ("fa2", "two-pass")
        for mutant in in_feature(
            algorithm, "scores", _COUNTED_TWICE,
            ("WEIGHT = 1.0f;", "WEIGHT = 2.0f;"),
            ("np.float32(1 if sinks else 0)", "np.float32(2 if sinks else 0)"),
        )
    ),
    *in_output(
        _COUNTED_TWICE,
        ("+ exp2_approx(sink + minus_m);", "+ 2 * exp2_approx(sink + minus_m);"),
        ("+ exp2_approx(sink2 + minus_m)", "+ np.float32(2) * exp2_approx(sink2 + minus_m)"),
    ),
    *in_output(
        "sink not brought to the row's maximum",
        ("+ exp2_approx(sink + minus_m);", "+ exp2_approx(sink);"),
        ("+ exp2_approx(sink2 + minus_m)", "+ exp2_approx(sink2)"),
    ),
    *in_output(
        "l not brought to the sink's maximum",
        ("l = correction * l + exp2", "l = l + exp2"),
        ("total = correction * total +", "total = total +"),
    ),
    *in_output(
        "O not brought to the sink's maximum",
        ("correction / l;", "1.0f / l;"),
        ("correction / total", "ONE / total"),
    ),
    *in_output(
        "maximum not raised to the sink",
        ("                m = fmaxf(m, sink);\n", ""),
        ("m_row = max(m_row, sink2)", "pass"),
    ),
    *in_output(
        "lse without the sink",
        ("own_m = m;\n                own_l = l;",
         "own_m = own.m[i][h];\n                own_l = quad_sum(own.l[i][h]);"),
        ("L = m_row * LN_2 + libdevice.logf(total)", "L = m[i, h] * LN_2 + libdevice.logf(quad_sum(l[i, h]))"),
    ),
    *in_output(
        "sink in powers of e",
        ("LOG2_E * sink_logit", "sink_logit"), ("LOG2_E * logit(", "logit("),
    ),
    *in_kernel(
        _MMA, "sink of the key/value head",
        ("sink.logit(head));", "sink.logit(head / group));"),
        ("logit(sink, head_of_entry(heads))", "logit(sink, head_of_entry(heads) // uint32(group))"),
    ),
    *in_kernel(
        "fa2", "sink of the key/value head",
        ("sink.logit(head)", "sink.logit(head / group)"), ("logit(sink, head)", "logit(sink, kv_head)"),
    ),
    *in_kernel(
        "fa2", "sink scaled",
        ("sink.logit(head)", "tau * sink.logit(head)"), ("logit(sink, head)", "tau * logit(sink, head)"),
    ),
    *in_kernel(
        "two-pass", "sink of the key/value head",
        ("sink.logit(block.head)", "sink.logit(block.head / group)"),
        ("logit(sink, block.head)", "logit(sink, kv_head)"),
    ),
    *in_kernel(
        "two-pass", "sink scaled",
        ("sink.logit(block.head)", "tau * sink.logit(block.head)"),
        ("logit(sink, block.head)", "tau * logit(sink, block.head)"),
    ),
    *in_softmax(
        "sink counted by every lane",
        ("lane_index() == 0 ? Sink::WEIGHT * exp_below(sink_logit, m) : 0.0f",
         "Sink::WEIGHT * exp_below(sink_logit, m)"),
        ("exp_below(sink_logit, m) if lane_index() == 0 else ZERO", "exp_below(sink_logit, m)"),
    ),
    *in_softmax(
        "sink of the sequence",
        ("sink.logit(blockIdx.y)", "sink.logit(blockIdx.z)"),
        ("logit(sink, head_index())", "logit(sink, batch_index())"),
    ),
    in_split_kv(
        "sink counted twice",
        ("l = is_first_warp ? Sink::WEIGHT : 0.0f", "l = is_first_warp ? 2 * Sink::WEIGHT : 0.0f"),
    ),
    in_split_kv("sink of a head counted through the batch", ("row / q_len % heads", "row / q_len", _OF_SPLITS)),
    in_split_kv("sink of the row's number", ("row / q_len % heads", "row % heads", _OF_SPLITS)),
    in_split_kv("sink without its weight", ("is_first_warp ? Sink::WEIGHT : 0.0f", "0.0f")),
)  # fmt: skip

MUTANTS = (*_CAPS, *_ALIBI, *_BIASES, *_SINKS)
