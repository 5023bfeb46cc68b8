"""What is written in CUDA and in Numba: with every feature the same launches, bits, bytes and claims.

A kernel in Numba takes seconds to compile and a tenth of one to run, so each is asked several problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from attention_runs import EXECUTOR, SANITIZER
from lanes import exhaustive_unless, thorough_unless
from right_answers import require_right
from twins import PAIRS

from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.planning.tiles import tile_of, with_tile
from harness.execution.planning.variant_calls import make_plan, refusal_of
from harness.model.operation import draw_inputs
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.operations.attention_backward.problem import BackwardProblem
from harness.operations.paged_attention.problem import PagedProblem


@dataclass(frozen=True)
class Case:
    """A kernel, by the features that it is compiled for, and what it is asked."""

    name: str
    asked: tuple[tuple[dict[str, Any], str], ...]
    """Fields of a problem and the regime of its inputs. Those of the first problem decide who takes the case."""
    features: dict[str, Any]
    """What is left out of the case where a variant does not take it."""


TERMS: dict[str, Any] = {"softcap": 3.0, "alibi": True, "sinks": True}
SHARED: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 2}


def dense(q_len: int, kv_len: int, mask: str, regime: str) -> tuple[dict[str, Any], str]:
    return {**SHARED, "q_len": q_len, "kv_len": kv_len, "mask": mask}, regime


LARGE: dict[str, Any] = {"heads": 2, "kv_heads": 1, "q_len": 200, "kv_len": 300}
"""Several tiles of tensor cores, too."""

# Tiles that are not full, and rows beside their edges; rows without keys and keys that nobody sees; NaN out of sight.
OF_DENSE = (
    Case(
        "causal",
        (
            dense(70, 101, "causal", "rising"),
            dense(100, 40, "causal", "normal"),
            dense(65, 129, "causal", "non-finite"),
            dense(1, 33, "causal", "hot"),
            ({**LARGE, "mask": "causal"}, "non-finite"),
        ),
        {},
    ),
    Case(
        "window, terms",
        (
            dense(70, 101, "window:33,20", "normal"),
            dense(150, 70, "window:5,40", "hot"),
            dense(40, 200, "window:31,0", "rising"),
            dense(96, 96, "window:0,0", "normal"),
            ({**LARGE, "mask": "window:90,64"}, "normal"),
        ),
        {"bias": "heads,q_len,kv_len", **TERMS},
    ),
    Case(
        "documents, dropout",
        (
            dense(70, 101, "window:20,9+documents:20+50+31/40+61", "normal"),
            dense(96, 96, "window:100,100+documents:33+31+32/0+64+32", "non-finite"),
            dense(130, 60, "window:31,32+documents:1+29+30/60", "rising"),
            ({**LARGE, "mask": "window:150,31+documents:97+63+140"}, "normal"),
        ),
        {"dropout": 0.1},
    ),
    Case(
        "blocks, terms",
        (
            dense(70, 101, "blocks:32x48,3", "normal"),
            dense(130, 66, "blocks:32x48,5", "hot"),
            dense(33, 200, "blocks:17x33,2", "rising"),
            ({**LARGE, "mask": "blocks:64x100,3"}, "normal"),
        ),
        TERMS,
    ),
    Case(
        "FlashMask",
        (
            dense(70, 101, "causal+flashmask:2,1", "normal"),
            dense(130, 66, "causal+flashmask:2,2", "non-finite"),
            dense(64, 129, "causal+flashmask:2,5", "rising"),
            ({**LARGE, "mask": "causal+flashmask:2,3"}, "non-finite"),
        ),
        {},
    ),
    Case(
        "sequences in a layout",
        tuple(
            ({"heads": 4, "kv_heads": 2, "mask": "causal", "varlen": varlen, "layout": "bshd"}, regime)
            for varlen, regime in (
                ("5+0+64+3/20+33+47+1", "normal"),
                ("65+1+0+31/7+129+2+0", "non-finite"),
                ("70+133/100+203", "rising"),
            )
        ),
        {"v_head_dim": 40},
    ),
)
PAGED: dict[str, Any] = {"heads": 6, "kv_heads": 2, "page_size": 32}
OF_PAGES = (
    Case(
        "causal",
        (
            ({**PAGED, "lengths": (70, 300, 0, 1100, 33), "q_len": 3, "prefix": 40}, "rising"),
            ({**PAGED, "lengths": tuple(i * 7 % 40 for i in range(40))}, "normal"),
            ({**PAGED, "lengths": (100, 96, 513), "q_len": 2, "prefix": 96}, "non-finite"),
        ),
        {},
    ),
    Case(
        "window, terms",
        (
            ({**PAGED, "lengths": (1300, 0, 40, 9), "q_len": 7}, "normal"),
            ({**PAGED, "lengths": (600, 33), "q_len": 3, "prefix": 33}, "rising"),
        ),
        {"window": 100, **TERMS},
    ),
    Case(
        "8 bits, layout",
        (
            ({**PAGED, "lengths": (40, 0, 600), "q_len": 3}, "normal"),
            ({**PAGED, "lengths": (5,) * 6, "q_len": 3}, "non-finite"),
        ),
        {"kv_dtype": "e4m3", "layout": "nhd"},
    ),
    Case(
        "rows of any number",
        (
            ({**PAGED, "lengths": (70, 9, 300), "q_lengths": (3, 1, 40)}, "normal"),
            ({**PAGED, "lengths": (70, 0, 130), "q_lengths": (0, 1, 17)}, "non-finite"),
        ),
        {},
    ),
)
KINDS: dict[str, tuple[type, tuple[Case, ...], tuple[tuple[str, int], ...]]] = {
    "attention": (Problem, OF_DENSE, (("float16", 48), ("float32", 64))),
    "attention-backward": (BackwardProblem, OF_DENSE, (("float16", 24), ("float32", 16))),
    "paged-attention": (PagedProblem, OF_PAGES, (("float16", 24),)),
}
"""Problem, cases, and builds: those that tests of the variants in Numba compile, too."""


def problems(variant: Variant, case: Case) -> Iterator[tuple[BaseProblem, str]]:
    """Problems of the first build that the variant takes, and regimes. The causal case begins with the last build."""
    kind, cases, builds = KINDS[variant.operation]
    features = {name: value for name, value in case.features.items() if name in variant.takes}
    for dtype, head_dim in reversed(builds) if case is cases[0] else builds:
        fields = [{**asked, **features, "dtype": dtype, "head_dim": head_dim} for asked, _ in case.asked]
        if refusal_of(variant, kind(**fields[0])) is None:
            of_gradients = kind is BackwardProblem
            for each, (_, regime) in zip(fields, case.asked, strict=True):
                yield kind(**each), f"{regime}-gradient" if of_gradients and regime == "non-finite" else regime
            return


ROUNDED_OTHERWISE = {("fa2-mma", "window, terms"), *(("paged", case.name) for case in OF_PAGES)}
"""fa2-mma adds ALiBi in two parts in CUDA, one for a row and one for a column, and the last bit of paged's lse differs:
answers are held to the budget alone."""
OF_SUBNORMALS = 1e-36
"""Subnormal numbers are flushed by CuPy's compiler and not by Numba's."""

CASES = [
    (cuda, numba, case)
    for cuda, numba in PAIRS
    for case in KINDS[numba.operation][1]
    if next(problems(numba, case), None) is not None
]
each_case = pytest.mark.parametrize(
    ("cuda", "numba", "case"),
    thorough_unless(lambda case: case[0].name == "fa1-cupy" and case[2].name == "causal", CASES),
    ids=lambda value: value.name,
)


def launched(plan: Plan) -> list[tuple[object, ...]]:
    """All that is given to each kernel; of a tensor with strides of its own the name."""

    def named(argument: object) -> object:
        return argument[0] if isinstance(argument, tuple) and argument and isinstance(argument[0], str) else argument

    return [(*map(named, each.args), each.grid, each.block, each.shared_bytes) for each in plan.launches]


@each_case
def test_the_second_gives_the_bits_and_moves_the_bytes_of_the_first(cuda: Variant, numba: Variant, case: Case):
    for problem, regime in problems(numba, case):
        if regime in cuda.fails_in:
            continue
        question = Question.draw(problem, regime, 1)
        tile = tile_of(numba, problem)  # which may be a smaller one, for registers
        plans = [make_plan(each, problem) for each in (with_tile(cuda, tile) if tile else cuda, numba)]
        assert plans[0].buffers == plans[1].buffers
        assert launched(plans[0]) == launched(plans[1])
        expected = EXECUTOR.run(problem, plans[0], question.inputs)
        done = attempt(numba, problem, EXECUTOR, question=question)
        require_right(done)
        found = done.execution
        assert found is not None
        assert (found.read_bytes, found.write_bytes) == (expected.read_bytes, expected.write_bytes)
        for name, array in () if (cuda.algorithm, case.name) in ROUNDED_OTHERWISE else expected.outputs.items():
            both = (each.astype(np.float64) for each in (found.outputs[name], array))
            np.testing.assert_allclose(*both, rtol=0, atol=OF_SUBNORMALS, err_msg=f"{name} of {problem}, {regime}")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cuda", "numba", "case"),
    exhaustive_unless(lambda case: case[2] is KINDS[case[1].operation][1][0], CASES),
    ids=lambda value: value.name,
)
def test_the_second_races_with_nobody(cuda: Variant, numba: Variant, case: Case):
    problem, regime = next(problems(numba, case))
    findings = SANITIZER.check(numba, problem, make_plan(numba, problem), draw_inputs(problem, regime, 1))
    assert findings == (), [finding.message for finding in findings]


@pytest.mark.compiles(False)
@pytest.mark.parametrize(("cuda", "numba"), PAIRS, ids=lambda variant: variant.name)
def test_both_say_the_same_of_themselves(cuda: Variant, numba: Variant):
    assert {*numba.takes} <= {*cuda.takes}
    assert {*numba.fails_in} <= {*cuda.fails_in}  # NVRTC flushes subnormal numbers
    assert (cuda.numerics, cuda.deterministic) == (numba.numerics, numba.deterministic)
