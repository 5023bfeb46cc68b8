"""Gradients of unpadded sequences and under masks that are no run of keys: answers, claims, zeros, what is not read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulators import emulator
from lanes import exhaustive_unless, thorough_unless
from right_answers import require_right
from twins import of_one_language

from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.planning.variant_calls import refusal_of
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.variant import Variant
from harness.operations.attention_backward.problem import BackwardProblem
from harness.support.errors import ProblemError

VARIANTS = discover().registry.select(None, "attention-backward")
EXECUTOR = emulator()
SANITIZER = EmulatorSanitizer(shuffled_runs=1)
SIZES: dict[str, Any] = {"heads": 4, "kv_heads": 2, "q_len": 150, "kv_len": 170}
# Sequences without rows and without keys; rows and blocks that see nothing, and keys that nobody sees.
SEQUENCES = {
    "causal, alibi": {"varlen": "70+0+33+5+1/100+7+33+0+2", "mask": "causal", "alibi": True},
    "tiles' edges, terms": {
        "varlen": "5+64+65+130/64+63+65+1", "mask": "causal+window:20", "alibi": True, "sinks": True, "softcap": 3.0,
    },
}  # fmt: skip
SCATTERED = {
    "blocks": {**SIZES, "mask": "blocks:32x48,3"},
    "blocks larger than tiles, causal": {**SIZES, "mask": "causal+blocks:90x100,1"},
    "blocks and a window": {**SIZES, "mask": "blocks:17x33,3+window:40,10", "batch": 2, "bias": "q_len"},
    "FlashMask": {**SIZES, "mask": "flashmask:4,1"},
    "FlashMask, causal, terms": {
        **SIZES, "mask": "causal+flashmask:2,1", "bias": "heads,q_len,kv_len", "sinks": True, "softcap": 3.0,
    },
    "FlashMask within documents": {
        **SIZES, "mask": "flashmask:4,3+documents:30+50+90/90+50+30", "batch": 2, "bias": "heads,kv_len",
    },
}  # fmt: skip
CASES = {**SEQUENCES, **SCATTERED}


def problem_for(variant: Variant, case: str) -> BackwardProblem | None:
    """The problem of a kernel that the variant has; None if it does not take the features. Without biases if it does
    not take those."""
    fields = {name: value for name, value in CASES[case].items() if name != "bias" or "bias" in variant.takes}
    for dtype, head_dim in (("float32", 16), ("float16", 24)):
        problem = BackwardProblem(**{"heads": 4, "kv_heads": 2, **fields}, dtype=dtype, head_dim=head_dim)  # type: ignore[arg-type]
        if refusal_of(variant, problem) is None:
            return problem
    return None


TAKEN = [(v, case) for v in VARIANTS for case in CASES if problem_for(v, case) is not None]


def named(value: Variant | str) -> str:
    return value if isinstance(value, str) else value.name


def kept(pair: tuple[Variant, str]) -> bool:
    return pair[0].name == "bwd-fa2-cupy" and pair[1] in ("causal, alibi", "blocks", "FlashMask")


each_pair = pytest.mark.parametrize(("variant", "case"), of_one_language(kept, TAKEN), ids=named)


@each_pair
def test_answers_are_right_claims_exact_and_gradients_without_pairs_0(variant: Variant, case: str):
    problem = problem_for(variant, case)
    assert problem is not None
    done = attempt(variant, problem, EXECUTOR, question=Question.draw(problem, "normal", 1))
    require_right(done)
    assert done.execution is not None
    for sequence in range(problem.batch):
        seen = problem.seen(sequence)
        for name, found in done.execution.outputs.items():
            if name in ("dQ", "dK", "dV"):
                sees_nobody = ~seen.any(axis=1 if name == "dQ" else 0)
                assert np.all(found[sequence][:, sees_nobody] == 0), name


@pytest.mark.parametrize("name", thorough_unless(lambda name: name == "K", ["Q", "K", "V", "dO"]))
@pytest.mark.parametrize(
    ("variant", "case"),
    of_one_language(kept, [pair for pair in TAKEN if pair[1] in ("blocks", "FlashMask")]),
    ids=named,
)
def test_nan_reaches_nobody_who_does_not_see_it(variant: Variant, case: str, name: str):
    problem = problem_for(variant, case)
    assert problem is not None
    seen, inputs = problem.seen(), draw_inputs(problem, "normal", 4)
    of_key = name in ("K", "V")
    axis = 0 if of_key else 1
    at = int(np.argmax(seen.any(axis=axis) & ~seen.all(axis=axis)))
    clean = EXECUTOR.run(problem, variant.plan(problem), inputs).outputs
    dirty = {**inputs, name: inputs[name].copy()}
    dirty[name][0, :, at] = np.nan
    found = EXECUTOR.run(problem, variant.plan(problem), dirty).outputs
    rows = np.flatnonzero(seen[:, at]) if of_key else np.array([at])
    keys = np.flatnonzero(seen[rows].any(axis=0))
    assert 0 < len(rows) < len(seen)
    for output, reached, length in (("dQ", rows, len(seen)), ("dK", keys, seen.shape[1]), ("dV", keys, seen.shape[1])):
        others = np.setdiff1d(np.arange(length), reached)
        assert np.isfinite(found[output][:, :, others].astype(np.float32)).all()
        if output != "dQ" or variant.deterministic:
            np.testing.assert_array_equal(found[output][:, :, others], clean[output][:, :, others])
    assert np.isnan(found["dQ"][:, :, rows].astype(np.float32)).all()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("variant", "case"), exhaustive_unless(lambda pair: pair[0].backend == "cupy", TAKEN), ids=named
)
def test_no_races_and_no_unwritten_memory(variant: Variant, case: str):
    problem = problem_for(variant, case)
    assert problem is not None
    findings = SANITIZER.check(variant, problem, variant.plan(problem), draw_inputs(problem, "normal", 1))
    assert findings == (), [finding.message for finding in findings]


def test_tiles_that_no_pair_is_in_are_not_visited():
    """A checkerboard of tiles: half of the claimed bytes of dQ, and of the keys' own tiles all."""
    (variant,) = (v for v in VARIANTS if v.name == "bwd-fa2-ordered-cupy")
    fields: dict[str, Any] = {"heads": 1, "q_len": 256, "kv_len": 256, "head_dim": 16}
    assert variant.claim is not None
    plain = BackwardProblem(**fields)
    thin = BackwardProblem(**fields, mask="blocks:32x32,3")  # type: ignore[arg-type]
    on = thin.seen()[::32, ::32]
    # Q, dO, L and D come once per visited tile for dK and dV, and K and V once for dQ; the mask costs less than that.
    per_tile = 2 * 32 * (64 + 4) + 2 * 32 * 64
    saved = (on.size - on.sum()) * per_tile
    assert 0 < saved - (variant.claim(plain).read_bytes - variant.claim(thin).read_bytes) < 0.4 * saved


def test_tiles_that_no_pair_is_in_are_not_visited_on_tensor_cores():
    """A checkerboard of the usual tiles: what a visit moves comes as often as one is on."""
    fields: dict[str, Any] = {"heads": 2, "q_len": 256, "kv_len": 512, "head_dim": 64, "dtype": "float16"}
    plain = BackwardProblem(**fields)
    thin = BackwardProblem(**fields, mask="blocks:64x128,3")  # type: ignore[arg-type]
    on = thin.seen()[::64, ::128]
    # Q and dO, L and D, and dQ in float32, once for each head.
    per_tile = 2 * (2 * 64 * 2 * 64 + 2 * 64 * 4 + 64 * 64 * 4)
    # Each block of the mask is read once, and each head reads how many tiles there are and which: 32 bytes each.
    of_lists = 32 * on.size + 2 * 32 * (on.shape[1] + int(on.sum()))
    variant = discover().registry.get("bwd-mma-cupy")
    assert variant.claim is not None
    saved = int(on.size - on.sum()) * per_tile
    # K_j and V_j of keys that nobody sees are not read.
    saved += int((~on.any(axis=0)).sum()) * 2 * (2 * 128 * 2 * 64)
    assert 0 < saved == variant.claim(plain).read_bytes - variant.claim(thin).read_bytes + of_lists


def test_masks_that_differ_between_heads_are_refused():
    with pytest.raises(ProblemError, match="the same for all heads"):
        BackwardProblem(mask="blocks:64x32,1,heads")  # type: ignore[arg-type]


def test_varlen_keeps_the_layout_of_the_gradients():
    assert BackwardProblem(varlen="3+5").layout.is_dense  # type: ignore[arg-type]
