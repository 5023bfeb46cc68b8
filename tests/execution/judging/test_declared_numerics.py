"""What a variant declares that widens its budget has to be in its code."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulators import emulator

from harness.execution.attempt import Attempt, attempt
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import FAIL, UNDECIDED
from harness.model.discovery import discover
from harness.operations.attention.problem import Problem
from harness.ptx.arithmetic import Arithmetic

PLUGIN = Path(__file__).parents[2] / "plugins" / "declared_numerics.py"
LONG = Problem(heads=1, q_len=16, kv_len=16384, head_dim=16, dtype="float16")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("cvt.rn.satfinite.e4m3x2.f32 %rs1, %f1, %f2;", "e4m3"),
        ("wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3 {%f1}, %rd1, %rd2, p, 1, 1;", "e4m3"),
        ("mul.rn.f16x2 %r1, %r2, %r3;", "rounds_to_16_bits"),
        ("fma.rn.bf16x2 %r1, %r2, %r3, %r4;", "rounds_to_16_bits"),
        ("cvt.rn.f16.f32 %rs1, %f1;\nst.shared.u16 [%r1], %rs1;", "rounds_to_16_bits"),
    ],
)
def test_conversions_and_products_are_seen(line: str, shown: str) -> None:
    assert getattr(Arithmetic.of(line), shown)
    assert not getattr(Arithmetic.of("cvt.rn.f16.f32 %rs1, %f1;\nst.global.u16 [%rd1], %rs1;"), shown)
    assert not getattr(Arithmetic.of("cvt.rn.f16x2.e4m3x2 %r1, %rs1;\nmul.f32 %f1, %f2, %f3;"), shown)


def asked(name: str, problem: Problem = LONG) -> Attempt:
    variant = discover([PLUGIN]).registry.get(name)
    return attempt(variant, problem, emulator(), question=Question.draw(problem), holds_bytes=False)


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("zeros-declare-e4m3", 'factors="e4m3"'),
        ("zeros-declare-scaled-q", "scaled_q=4"),
        ("zeros-declare-cubic", "cubic_exp=True"),
        ("zeros-declare-headroom", "headroom=8"),
    ],
)
def test_a_declaration_that_is_not_in_the_code_fails_by_name(name: str, field: str) -> None:
    done = asked(name)
    assert done.verdict == FAIL and done.numerics_failure is not None and done.numerics_failure in (done.reason or "")
    assert field in done.numerics_failure


@pytest.mark.compiles
def test_zeros_with_an_unused_e4m3_conversion_fail_for_their_zeros() -> None:
    done = asked("zeros-convert-to-e4m3")
    assert done.numerics_failure is None and done.accuracy is not None and done.accuracy.passed
    assert done.verdict == UNDECIDED
    assert asked("zeros").verdict == FAIL
