"""What a fixed order of sums adds to gradients by Hopper's own instructions: bits, bytes, and blocks that wait."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from emulators import emulator
from kernel_resources import assert_in_registers, used
from lanes import exhaustive_unless

from harness.compilers import DevicePointer
from harness.emulator import emulated_gpu
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import PASS
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.variant import Variant
from harness.operations.attention_backward.problem import BackwardProblem

ORDERED, NUMBA = (discover().registry.get(f"bwd-fa3-ordered-{backend}") for backend in ("cupy", "numba"))
IN_ANY_ORDER = discover().registry.get("bwd-fa3-cupy")
BACKENDS = pytest.mark.parametrize(
    "variant", exhaustive_unless(lambda variant: variant is ORDERED, [ORDERED, NUMBA]), ids=lambda variant: variant.name
)
EXECUTOR = emulator()
SANITIZER = EmulatorSanitizer(shuffled_runs=2)
HALF_ROWS, BY_TURNS, HALF_COLUMNS = 64, 96, 128
"""head_dim where each warpgroup has half of the rows of dQ_i, every second tile of it, and half of its columns."""


def problem(head_dim: int, **fields: Any) -> BackwardProblem:
    return BackwardProblem(**{"dtype": "float16", "head_dim": head_dim, "heads": 2, "kv_heads": 1, **fields})


# Tiles of 128 keys: the first that a row sees is not always the first of all, and some have no rows.
@pytest.mark.parametrize(
    ("q_len", "kv_len", "mask"),
    exhaustive_unless(
        lambda case: case[2] in ("causal+window:150", "causal+documents:96+33+160+11"),
        [
            (300, 420, "none"),
            (300, 420, "causal"),
            (300, 520, "causal+window:150"),
            (100, 520, "window:30,3"),  # the first tiles of keys have no rows
            (520, 100, "causal"),  # rows that see no key
            (300, 300, "causal+documents:96+33+160+11"),
            (300, 430, "causal+prefix:129"),
        ],
    ),
)
@pytest.mark.parametrize("head_dim", [HALF_ROWS, BY_TURNS, HALF_COLUMNS])
@BACKENDS
def test_answers_are_right_and_claims_exact(variant: Variant, head_dim: int, q_len: int, kv_len: int, mask: str):
    asked = problem(head_dim, q_len=q_len, kv_len=kv_len, mask=mask)
    done = attempt(variant, asked, EXECUTOR, question=Question.draw(asked, "normal", 1))
    assert done.verdict == PASS and done.claim_holds, (done.reason, done.counted)


# The emulator starts blocks in any order, and stops them anywhere. Without turns the same runs give other bits: four
# tiles of keys have more than one sum.
@pytest.mark.parametrize("head_dim", exhaustive_unless(lambda d: d == BY_TURNS, [HALF_ROWS, BY_TURNS, HALF_COLUMNS]))
@BACKENDS
def test_bits_do_not_depend_on_the_order_of_blocks(variant: Variant, head_dim: int):
    asked = problem(head_dim, q_len=150, kv_len=512)
    inputs = draw_inputs(asked, "normal", 1)
    findings = SANITIZER.check(variant, asked, variant.plan(asked), inputs)
    assert findings == (), [finding.message for finding in findings]
    undeclared = dataclasses.replace(IN_ANY_ORDER, deterministic=True)
    findings = SANITIZER.check(undeclared, asked, undeclared.plan(asked), inputs)
    assert [(finding.kind, finding.target) for finding in findings] == [("not deterministic", "buffer dQ")]


# Where a GPU has room for one block, those that a block waits for have to come before it.
def test_a_block_waits_only_for_blocks_with_smaller_indices(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(emulated_gpu, "resident_clusters", lambda *_: 1)
    asked = problem(BY_TURNS, q_len=150, kv_len=512, mask="causal")
    done = attempt(ORDERED, asked, EXECUTOR, question=Question.draw(asked, "normal", 1))
    assert done.verdict == PASS, done.reason


# Unlike in any order, of more than two tiles of keys, too.
@pytest.mark.parametrize("head_dim", exhaustive_unless(lambda d: d == BY_TURNS, [HALF_ROWS, BY_TURNS, HALF_COLUMNS]))
def test_both_backends_give_the_same_bits(head_dim: int):
    asked = problem(head_dim, q_len=200, kv_len=520, mask="causal+window:300")
    inputs = draw_inputs(asked, "normal", 1)
    cupy, numba = (EXECUTOR.run(asked, variant.plan(asked), inputs) for variant in (ORDERED, NUMBA))
    for name in ("dQ", "dK", "dV"):
        assert cupy.outputs[name].tobytes() == numba.outputs[name].tobytes(), name
    assert (cupy.read_bytes, cupy.write_bytes) == (numba.read_bytes, numba.write_bytes)


# The thread that adds dQ has 24 registers, and consumers visit rows from the last one on.
@pytest.mark.parametrize(
    ("head_dim", "mask"),
    exhaustive_unless(
        lambda case: case in ((56, "none"), (BY_TURNS, "causal"), (HALF_COLUMNS, "documents:20+44")),
        [(d, mask) for d in (56, 64, 96, 112, 128) for mask in ("none", "causal", "documents:20+44")],
    ),
)
@BACKENDS
def test_nothing_spills(variant: Variant, head_dim: int, mask: str):
    asked = problem(head_dim, q_len=64, kv_len=64, mask=mask)
    plan = variant.plan(asked)
    buffers = plan.all_buffers(asked)

    def resolved(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(map(resolved, arg))
        return DevicePointer(0, buffers[arg].shape, buffers[arg].dtype) if isinstance(arg, str) else arg

    assert_in_registers(used(dataclasses.replace(plan.launches[1], args=resolved(tuple(plan.launches[1].args)))))
