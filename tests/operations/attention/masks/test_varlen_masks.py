"""Unpadded sequences: which keys a row sees, what a problem has of them, and what cannot be combined."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from harness.model.cases.build import Builds
from harness.model.operation import draw_inputs
from harness.operations.attention.cases.build import FIRST, fitted
from harness.operations.attention.cases.simplification import simpler
from harness.operations.attention.masks import parse_mask
from harness.operations.attention.masks.rule_of_arrays import rule_of_arrays
from harness.operations.attention.masks.varlen import Varlen
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from harness.support.errors import ProblemError

LENGTHS = "5+0+3+2/7+2+0+4"
MASKS = ("none", "causal", "window:2", "causal+window:1")


def test_the_option_sets_lengths_layout_and_mask():
    problem = Problem(varlen=LENGTHS, mask="causal")  # type: ignore[arg-type]
    assert (problem.q_len, problem.kv_len, problem.layout.text) == (10, 13, "bshd")
    assert problem.mask.text == f"causal+varlen:{LENGTHS}" and problem.varlen is None
    assert Problem.from_fields(problem.to_fields()) == problem == dataclasses.replace(problem)
    starts = {tensor.name: tensor.shape for tensor in problem.inputs if tensor.name.startswith("cu_")}
    assert starts == {"cu_seqlens_q": (5,), "cu_seqlens_k": (5,)}
    inputs = draw_inputs(problem)
    assert inputs["cu_seqlens_q"].tolist() == [0, 5, 5, 8, 10] and inputs["cu_seqlens_k"].tolist() == [0, 7, 9, 9, 13]
    assert problem.tensor("lse").shape == (1, 2, 10)  # FlashAttention's (heads, all rows)


@pytest.mark.parametrize("mask", MASKS)
def test_each_sequence_is_a_problem_of_its_own(mask: str):
    """The answer of all is that of each alone, with ALiBi, whose distances begin anew."""
    problem = Problem(varlen=LENGTHS, mask=mask, alibi=True, heads=2)  # type: ignore[arg-type]
    inputs = draw_inputs(problem)
    answer, part = attention(problem, inputs), problem.sequences
    assert part is not None
    for rows, keys, q, k in zip(part.q_lengths, part.kv_lengths, part.q_starts, part.kv_starts):
        O, lse = answer["O"][:, :, q : q + rows], answer["lse"][:, :, q : q + rows]
        if keys == 0:
            assert not O.any() and np.isneginf(lse).all()
        elif rows:
            alone = Problem(q_len=rows, kv_len=keys, mask=mask, alibi=True, heads=2)  # type: ignore[arg-type]
            own = {"Q": inputs["Q"][:, :, q : q + rows], "slopes": inputs["slopes"]}
            own |= {name: inputs[name][:, :, k : k + keys] for name in "KV"}
            expected = attention(alone, own)
            np.testing.assert_allclose(O, expected["O"], rtol=1e-12)
            np.testing.assert_allclose(lse, expected["lse"], rtol=1e-12)


@pytest.mark.parametrize("mask", MASKS)
def test_runs_pairs_and_arrays_say_the_same(mask: str):
    problem = Problem(varlen="1+0+4+3+0/2+3+1+6+5", mask=mask)  # type: ignore[arg-type]
    first, end = (each[0] for each in problem.spans)
    keys = np.arange(problem.kv_len)
    runs = (first[:, None] <= keys) & (keys < end[:, None])
    assert (runs == problem.seen()).all()
    assert (np.diff(first) >= 0).all() and (np.diff(np.maximum(first, end)) >= 0).all()
    rule = rule_of_arrays(problem, draw_inputs(problem))
    assert rule is not None
    assert (rule(0, 0, np.arange(problem.q_len)[:, None], keys) == runs).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"varlen": "5+0/7"}, "2 numbers of rows and 1 of keys"),
        ({"varlen": "5+x"}, "is not varlen:ROWS"),
        ({"varlen": "5", "batch": 2}, "batch is 2, and has to be 1"),
        ({"varlen": "5", "q_len": 6}, "varlen has 5 for q_len, and q_len is 6"),
        ({"mask": "varlen:5+1"}, "have 6 rows and 6 keys; q_len is 256"),
        ({"varlen": "5", "dropout": 0.5}, "cannot be combined with dropout"),
        ({"varlen": "5", "bias": ("heads",)}, "cannot be combined with bias"),
        ({"varlen": "5", "far": 2**32}, "its sequences are the batch"),
        ({"varlen": "5", "mask": "documents:3+2"}, "masks are causal or a window"),
    ],
)
def test_what_is_refused(fields: dict[str, object], message: str):
    with pytest.raises(ProblemError, match=message):
        Problem(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", range(len(Varlen.drawn(32))))
def test_drawn_sequences_fit_any_lengths(number: int):
    mask = Varlen.drawn(32)[number]
    for rows, keys in ((1, 1), (5, 200), (200, 5), (300, 300)):
        clipped = mask.clipped_to(1, rows, keys)
        assert clipped.why_invalid(1, rows, keys) is None
        assert clipped.clipped_to(1, rows, keys) == clipped
        assert parse_mask(clipped.text) == clipped
    assert not mask.clipped_to(2, 5, 5).parts  # a batch of several has no such sequences


def test_simpler_cases_have_fewer_sequences_that_fit():
    from harness.model.cases.case import Case

    case = Case(fitted(q_len=40, kv_len=50, batch=1, heads=1, head_dim=16, mask=parse_mask("causal+varlen:9+31/1+49")))
    masks = {each.problem.mask.text for each in simpler(case, Builds((FIRST,)))}
    assert {"causal", "varlen:9+31/1+49", "causal+varlen:40/50"} <= masks


def test_dropout_and_a_bias_leave_no_sequences_in_a_campaign():
    fields = {"q_len": 40, "kv_len": 50, "batch": 1, "heads": 1, "mask": parse_mask("causal+varlen:9+31/1+49")}
    assert fitted(**fields, dropout=0.5).mask.text == fitted(**fields, bias=("heads",)).mask.text == "causal"
