"""Variants that declare no numerics, held to the strictest that their code allows: right ones pass, mistakes show."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import pytest
from emulators import emulator

from harness.cli import main
from harness.compilers import compile_kernel
from harness.emulator.executor import _arguments, _memory_of
from harness.execution.comparison import compare
from harness.execution.judging.inferred_numerics import strictest
from harness.execution.outcome import Comparison, Row
from harness.execution.run_settings import RunSettings
from harness.model.discovery import discover
from harness.model.numerics import Numerics
from harness.model.operation import operation_of
from harness.model.problem import BaseProblem
from harness.operations.attention.problem import Problem
from harness.operations.softmax.problem import SoftmaxProblem
from harness.ptx.arithmetic import Arithmetic
from harness.text.comparison_report import render_comparison

pytestmark = pytest.mark.compiles

PLUGIN = Path(__file__).parents[2] / "plugins" / "hidden_roundings.py"
REGISTRY = discover([PLUGIN]).registry
SMALL = {"heads": 2, "q_len": 33, "kv_len": 33, "head_dim": 8}


@functools.cache
def compared(dtype: str, regime: str) -> Comparison:
    variants = [REGISTRY.get(name) for name in ("says-nothing", "adds-epsilon", "truncates-weights")]
    return compare(variants, Problem(**SMALL, dtype=dtype), emulator(), RunSettings(regime=regime))


def row(name: str, dtype: str, regime: str) -> Row:
    return next(row for row in compared(dtype, regime).rows if row.variant == name)


@pytest.mark.parametrize(("dtype", "regime"), [("float32", "hot"), ("bfloat16", "normal")])
def test_a_right_kernel_is_within_it(dtype: str, regime: str) -> None:
    right = row("says-nothing", dtype, regime)
    assert right.error_over_strictest is not None and right.error_over_expected is not None
    assert right.error_over_expected < right.error_over_strictest < 1


@pytest.mark.parametrize(
    ("name", "dtype", "regime"), [("adds-epsilon", "float32", "hot"), ("truncates-weights", "bfloat16", "normal")]
)
def test_a_mistake_that_passes_is_beyond_it(name: str, dtype: str, regime: str) -> None:
    wrong = row(name, dtype, regime)
    assert (wrong.verdict, (wrong.error_over_expected or 2) < 1) == ("pass", True)
    assert wrong.error_over_strictest is not None and wrong.error_over_strictest > 5


def test_the_notes_are_a_line_each_and_say_what_to_declare() -> None:
    for dtype, regime, name, ending in (
        ("float32", "hot", "adds-epsilon", "answers that would be exact are not"),
        ("bfloat16", "normal", "truncates-weights", "error / expected would be 9"),
    ):
        text = render_comparison(compared(dtype, regime), "table")
        (note,) = (line for line in text.splitlines() if line.startswith(f"{name}: it does not declare `numerics`"))
        assert (
            f"which may hide a mistake (docs/numerics.md): with the fewest roundings that its code allows, {ending}"
            in note
            and ". If it rounds more" in note
        )
        assert note.endswith(f"; if not: {row(name, dtype, regime).strictest_numerics}")
        assert "optional: for a tighter check, declare where the kernel rounds" in text
        right = [line for line in text.splitlines() if line.startswith("says-nothing: ")]
        assert len(right) == 1 and "error / expected is 0." in right[0] and "mistake" not in right[0]


def test_what_is_to_be_declared_can_be_copied() -> None:
    written = row("says-nothing", "float32", "hot").strictest_numerics
    assert written is not None
    assert eval(written, {"Numerics": Numerics}) == Numerics(
        scores="float32", weights="float32", functions="accurate", sums="nearest", one_score=True, divides_last=True
    )


def test_json_has_it_and_who_declares_something_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--heads", "2", "--seq-len", "33", "--head-dim", "8", "--regime", "hot", "--device", "emulator"]
    asked = ["compare", "--plugin", str(PLUGIN), "--variants", "says-nothing,fa2-cupy", *size]
    assert main([*asked, "--format", "json"]) == 0
    rows = {row["variant"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert 0 < rows["says-nothing"]["error_over_strictest"] < 1
    assert rows["fa2-cupy"]["strictest_numerics"] is rows["fa2-cupy"]["error_over_strictest"] is None
    assert main(asked) == 0
    assert "fa2-cupy: " not in capsys.readouterr().out


def test_a_wrong_answer_needs_no_such_note() -> None:
    assert row("truncates-weights", "float32", "hot").error_over_strictest is None


DECLARED: list[tuple[str, BaseProblem]] = [
    ("fa2-cupy", Problem(heads=1, q_len=8, kv_len=8)),
    ("fa2-numba", Problem(heads=1, q_len=8, kv_len=8)),
    ("fa2-cupy", Problem(heads=1, q_len=8, kv_len=8, dtype="bfloat16")),
    ("three-pass-cupy", Problem(heads=1, q_len=8, kv_len=8, dtype="float16")),
    ("fa2-mma-cupy", Problem(heads=1, q_len=8, kv_len=8, dtype="float16")),
    ("split-kv-cupy", Problem(heads=1, q_len=8, kv_len=8, dtype="float16")),
    ("fa3-fp8-cupy", Problem(heads=1, q_len=8, kv_len=8, dtype="float16")),
    ("softmax-online-cupy", SoftmaxProblem(rows=4, columns=64)),
    ("softmax-safe-numba", SoftmaxProblem(rows=4, columns=64, dtype="float16")),
]


@pytest.mark.parametrize(("name", "problem"), DECLARED)
def test_what_is_read_from_the_code_is_what_its_author_declares(name: str, problem: BaseProblem) -> None:
    variant = REGISTRY.get(name)
    plan = variant.plan(problem)
    _, pointers = _memory_of(plan, problem)
    modules = (compile_kernel(launch.kernel, _arguments(launch, pointers), "sm_90").ptx for launch in plan.launches)
    arithmetic = Arithmetic.combined([Arithmetic.of(ptx) for ptx in modules])
    used = operation_of(problem).numerics_used(problem)
    known = {name: value for name, value in dataclasses.asdict(variant.numerics).items() if name in used}
    if problem.inputs[0].dtype == "float32" and "scores" in used:
        known |= {"scores": "float32", "weights": "float32"}
    assert strictest(arithmetic, plan, used) == Numerics(**known)


@pytest.mark.compiles(False)
@pytest.mark.parametrize(
    ("text", "narrows"),
    [
        ("cvt.rn.f16.f32 %rs1, %f1;\nst.global.u16 [%rd1], %rs1;", False),
        ("{  cvt.rn.bf16.f32 %rs1, %f1;}\n\nst.global.u16 [%rd1], %rs1;", False),
        ("cvt.rn.f16.f32 %rs1, %f1;\nmov.b32 %r1, {%rs1, %rs2};\nst.global.u32 [%rd1], %r1;", False),
        ("cvt.rn.f16.f32 %rs1, %f1;\nst.shared.u16 [%r1], %rs1;", True),
        ("cvt.rn.f16.f32 %rs1, %f1;\ncvt.f32.f16 %f2, %rs1;", True),
        ("cvt.rz.bf16x2.f32 %r1, %f1, %f2;\nshl.b32 %r2, %r1, 16;", True),
        ("cvt.rn.f16.f32 %rs1, %f1;\nmov.b32 %r1, {%rs1, %rs2};\nst.shared.u32 [%r9], %r1;", True),
        ("cvt.f32.f16 %f1, %rs1;\nst.shared.f32 [%r1], %f1;", False),
    ],
)
def test_what_is_rounded_for_its_store_alone_is_no_rounding_within(text: str, narrows: bool) -> None:
    assert Arithmetic.of(text).narrows is narrows


@pytest.mark.compiles(False)
@pytest.mark.parametrize(
    ("text", "functions"),
    [
        ("fma.rm.ftz.f32 %f1, %f2, %f3, %f4;\nex2.approx.ftz.f32 %f5, %f6;\ndiv.rn.f32 %f1, %f2, %f3;", "accurate"),
        ("mul.f32 %f1, %f2, 0f3FB8AA3B;\nex2.approx.ftz.f32 %f5, %f1;", "__expf"),
        ("mul.f32 %f1, %f2, %f3;\nex2.approx.ftz.f32 %f5, %f1;", "fast"),
        ("fma.rm.f32 %f1, %f2, %f3, %f4;\nex2.approx.f32 %f5, %f6;\ndiv.full.f32 %f1, %f2, %f3;", "fast"),
        ("rcp.approx.ftz.f32 %f1, %f2;", "fast"),
        ("rcp.rn.f32 %f1, %f2;\ndiv.u32 %r1, %r2, %r3;", "accurate"),
    ],
)
def test_the_most_accurate_functions_that_opcodes_allow(text: str, functions: str) -> None:
    assert Arithmetic.of(text).functions == functions
