from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

import numpy as np
import pytest
from numpy_executor import NumpyExecutor, NumpyKernel, numpy_variant

from harness.execution.attempt import attempt
from harness.execution.comparison import compare, counts_beside, lost_row, rank
from harness.execution.judging.holdout_inputs import HoldoutInputs
from harness.execution.judging.question import Question
from harness.execution.outcome import Row
from harness.execution.protocol import Device, Execution
from harness.execution.run_settings import RunSettings
from harness.model.operation import operation_of
from harness.model.plan import Launch, Plan
from harness.model.traffic import Traffic
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.support.errors import CompileError, KernelFault, UsageError

PROBLEM = Problem(heads=2, q_len=16, kv_len=16, head_dim=8)
GPU = Device("gpu", "a GPU", "sm_90")


class Raising(NumpyExecutor):
    """Raises where the kernel's name is in `errors`."""

    errors: Mapping[str, BaseException] = {}

    def run(self, problem, plan, inputs):
        for launch in plan.launches:
            if launch.kernel_name in self.errors:
                raise self.errors[launch.kernel_name]
        return super().run(problem, plan, inputs)


def test_an_exception_of_the_harness_is_not_blamed_on_the_variant(monkeypatch: pytest.MonkeyPatch):
    def broken(*arguments: object) -> None:
        raise KeyError("no such row")

    monkeypatch.setattr(operation_of(PROBLEM), "tolerance", broken)
    (row,) = compare([numpy_variant("right")], PROBLEM, NumpyExecutor()).rows
    assert row.verdict == "error"
    assert row.reason.startswith("the harness itself failed, not the variant: KeyError: 'no such row' (harness/")


def test_a_passing_row_has_everything_that_the_emulator_knows():
    (row,) = compare([numpy_variant("right", lse=True)], PROBLEM, NumpyExecutor()).rows
    assert (row.rank, row.variant, row.verdict, row.reason) == (1, "right", "pass", None)
    assert (row.read_bytes, row.write_bytes, row.total_bytes) == (3200, 1600, 4800)
    assert row.allocated_bytes == 2 * 16 * 8 * 4 + 2 * 16 * 4
    assert row.compulsory_bytes == 4 * 2 * 16 * 8 * 4
    assert row.times_compulsory == pytest.approx(4800 / 4096)
    assert row.launches == 1
    assert 0 <= row.error_over_budget < 1
    assert 0 <= row.optional_errors["lse"].error_over_budget < 1
    assert row.claimed_bytes is row.claim_holds is row.time_ms is row.note is None


def test_a_wrong_variant_fails_with_its_place_and_keeps_its_numbers():
    comparison = compare(
        [numpy_variant("wrong", mutant="scale missing"), numpy_variant("right")], PROBLEM, NumpyExecutor()
    )
    right, wrong = comparison.rows
    assert (right.verdict, wrong.verdict) == ("pass", "fail")
    assert wrong.rank is None
    assert wrong.error_over_budget > 1
    assert "the worst at batch 0" in wrong.reason
    assert wrong.total_bytes == 4800
    assert not comparison.all_passed


def failing_plan(problem: Problem) -> Plan:
    raise ValueError("no idea\nhow")


def bad_claim(problem: Problem) -> Traffic:
    return 1 // 0  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        ({"supports": lambda problem: "head_dim is\n too small"}, "unsupported", "head_dim is too small"),
        ({"supports": lambda problem: True}, "error", "supports() returned True"),
        ({"supports": failing_plan}, "error", "supports() failed"),
        ({"plan": failing_plan}, "error", "ValueError: no idea how"),
        ({"plan": failing_plan}, "error", "test_compare.py:"),
        ({"plan": lambda problem: exit(3)}, "error", "SystemExit: 3"),
        ({"plan": lambda problem: None}, "error", "plan() returned a NoneType"),
        ({"plan": lambda problem: Plan((Launch(NumpyKernel("k", print), (1,), (1,), ("W",)),))}, "error", "'W'"),
        (
            {"plan": lambda problem: Plan((Launch(NumpyKernel("k", lambda p, a: a["W"]), (1,), (1,), ()),))},
            "error",
            "KeyError: 'W'",
        ),
        ({"plan": lambda problem: Plan(())}, "fail", "were never written"),
    ],
)
def test_whatever_goes_wrong_becomes_a_row_and_the_others_still_come(change: dict, verdict: str, words: str):
    odd = dataclasses.replace(numpy_variant("odd"), **change)
    good, bad = compare([odd, numpy_variant("good")], PROBLEM, NumpyExecutor()).rows
    assert (good.variant, good.verdict, good.rank) == ("good", "pass", 1)
    assert (bad.variant, bad.verdict, bad.rank) == ("odd", verdict, None)
    assert words in bad.reason
    assert bad.total_bytes is None or verdict == "fail"


def test_what_the_executor_raises_becomes_a_row():
    executor = Raising()
    executor.errors = {
        "a": CompileError("kernel a does not compile:\nkernel.cu(3): error: expected a ';'"),
        "b": KernelFault("out of bounds", "kernel b reads past Q"),
        "c": MemoryError("too much"),
    }
    rows = compare([numpy_variant(name) for name in "abcd"], PROBLEM, executor).rows
    assert [(row.variant, row.verdict) for row in rows] == [
        ("d", "pass"),
        ("a", "error"),
        ("b", "error"),
        ("c", "error"),
    ]
    assert "expected a ';'" in rows[1].reason
    assert rows[2].reason == "kernel b reads past Q"
    assert rows[1].error_over_budget is None


def test_an_interrupt_ends_it_all():
    executor = Raising()
    executor.errors = {"a": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        compare([numpy_variant("a"), numpy_variant("b")], PROBLEM, executor)


def test_the_oracle_is_asked_once(monkeypatch: pytest.MonkeyPatch):
    calls = []
    operation = operation_of(PROBLEM)
    real = operation.answer
    monkeypatch.setattr(operation, "answer", lambda *args: calls.append(1) or real(*args))
    compare([numpy_variant("a"), numpy_variant("b")], PROBLEM, NumpyExecutor())
    assert calls == [1]


def test_steps_are_announced():
    steps: list[str] = []
    compare([numpy_variant("a"), numpy_variant("b")], PROBLEM, NumpyExecutor(), step=steps.append)
    assert steps == ["the reference result", "a", "b"]


def test_claims_are_held_against_counts():
    claims = {"exact": Traffic(3200, 1600), "off": Traffic(1600, 3200)}
    variants = [numpy_variant(name, claim=claim) for name, claim in claims.items()] + [numpy_variant("none")]
    rows = {row.variant: row for row in compare(variants, PROBLEM, NumpyExecutor()).rows}
    assert rows["exact"].claim_holds is True
    assert rows["exact"].note is None
    # The totals agree, reads and writes do not.
    assert rows["off"].claim_holds is False
    assert (rows["off"].verdict, rows["off"].rank) == ("fail", None)
    assert rows["off"].reason == "claims 1,600 bytes read and 3,200 written; counted: 3,200 and 1,600"
    assert (rows["none"].verdict, rows["none"].claim_holds) == ("pass", None)


def test_a_formula_may_claim_nothing_for_a_problem():
    some = dataclasses.replace(numpy_variant("some"), claim=lambda problem: None)
    (row,) = compare([some], PROBLEM, NumpyExecutor()).rows
    assert (row.verdict, row.claim_holds, row.claimed_bytes) == ("pass", None, None)


def test_a_wrong_answer_and_a_wrong_claim_are_both_told():
    wrong = numpy_variant("wrong", mutant="scale missing", claim=Traffic(1, 2))
    (row,) = compare([wrong], PROBLEM, NumpyExecutor()).rows
    assert row.verdict == "fail"
    assert re.search(
        r"the worst at batch 0.*; claims 1 bytes read and 2 written; counted: 3,200 and 1,600$", row.reason
    )


def test_a_claim_is_not_judged_where_nothing_is_counted():
    gpu = NumpyExecutor(device=Device("gpu", "GPU", "sm_90"), counts=False)
    (row,) = compare([numpy_variant("off", claim=Traffic(1, 2))], PROBLEM, gpu).rows
    assert (row.verdict, row.claim_holds, row.claimed_bytes) == ("pass", None, 3)


def test_a_claim_that_raises_is_a_failed_check():
    odd = dataclasses.replace(numpy_variant("odd"), claim=bad_claim)
    (row,) = compare([odd], PROBLEM, NumpyExecutor()).rows
    assert row.verdict == "fail"
    assert row.claimed_bytes is None
    assert "ZeroDivisionError" in row.reason
    assert row.total_bytes == 4800


def test_local_memory_is_part_of_the_total_and_of_no_claim():
    spilling = numpy_variant("a", local_sectors=1000, claim=Traffic(3200, 1600))
    rows = compare([spilling, numpy_variant("b", read_sectors=1000)], PROBLEM, NumpyExecutor()).rows
    assert [(row.variant, row.rank, row.total_bytes) for row in rows] == [("b", 1, 1050 * 32), ("a", 2, 1150 * 32)]
    row = rows[1]
    assert (row.read_bytes, row.write_bytes, row.local_read_bytes, row.local_write_bytes) == (3200, 1600, 0, 32000)
    assert (row.verdict, row.claim_holds) == ("pass", True)
    wrong = numpy_variant("a", local_sectors=1000, claim=Traffic(3200, 800))
    (row,) = compare([wrong], PROBLEM, NumpyExecutor()).rows
    counted = "counted: 3,200 and 1,600, and 32,000 bytes of local memory, which claims do not include"
    assert (row.reason or "").endswith(counted)


def plain_row(
    name: str, verdict: str = "pass", total: int | None = None, time_ms: float | None = None, noise_ms: float = 0.01
) -> Row:
    return Row(
        variant=name,
        algorithm="x",
        backend="cupy",
        verdict=verdict,
        compulsory_bytes=1,
        total_bytes=total,
        time_ms=time_ms,
        time_low_ms=time_ms and time_ms - noise_ms,
        time_high_ms=time_ms and time_ms + noise_ms,
    )


def test_ranking_on_the_emulator_is_by_bytes_and_ties_share_a_rank():
    rows = [
        plain_row("bad", "fail", 1),
        plain_row("c", total=30),
        plain_row("unknown"),
        plain_row("a", total=10),
        plain_row("b", total=10),
        plain_row("no", "unsupported"),
        plain_row("err", "error"),
    ]
    ranked = rank(rows, Device("emulator", "x", "sm_90"))
    assert [(r.variant, r.rank) for r in ranked] == [
        ("a", 1), ("b", 1), ("c", 3), ("unknown", None), ("bad", None), ("err", None), ("no", None),
    ]  # fmt: skip


def test_ranking_on_a_gpu_is_by_time():
    rows = [plain_row("slow", total=1, time_ms=2.0), plain_row("fast", total=9, time_ms=1.0)]
    assert [(r.variant, r.rank) for r in rank(rows, GPU)] == [("fast", 1), ("slow", 2)]


def test_indistinguishable_times_share_a_rank():
    rows = [plain_row("b", time_ms=1.1, noise_ms=0.1), plain_row("a", time_ms=1.0, noise_ms=0.1)]
    rows.append(plain_row("c", time_ms=1.3, noise_ms=0.01))
    assert [(r.variant, r.rank) for r in rank(rows, GPU)] == [("a", 1), ("b", 1), ("c", 3)]


def test_a_gpu_has_times_and_bytes_from_the_emulator_beside_it():
    gpu = NumpyExecutor(GPU, counts=False, times_ms={"a": 2.0, "b": 1.0})
    counter = NumpyExecutor()
    variants = [numpy_variant("a"), numpy_variant("b", claim=Traffic(3200, 1600))]
    comparison = compare(variants, PROBLEM, gpu, counter=counter)
    assert [(r.variant, r.time_ms, r.total_bytes) for r in comparison.rows] == [("b", 1.0, 4800), ("a", 2.0, 4800)]
    assert comparison.rows[0].claim_holds is True
    assert comparison.counted_on == counter.device
    assert counter.runs == ["a", "b"]

    alone = compare(variants, PROBLEM, gpu)
    assert alone.counted_on is None
    assert [r.total_bytes for r in alone.rows] == [None, None]
    assert alone.rows[0].claimed_bytes == 4800
    assert alone.rows[0].claim_holds is None


def test_what_the_counter_cannot_run_is_a_remark():
    counter = Raising()
    counter.errors = {"a": KernelFault("trap", "no\nsuch opcode")}
    (row,) = compare([numpy_variant("a")], PROBLEM, NumpyExecutor(GPU, counts=False), counter=counter).rows
    assert (row.verdict, row.total_bytes) == ("pass", None)
    assert row.note == "bytes not counted: no such opcode"


def memorising(problem: Problem) -> Variant:
    """The right answer for the seed that everybody names; a table, whatever the inputs are."""
    answer = Question.draw(problem).answer["O"].astype(np.float32)

    def body(problem: Problem, arrays: dict[str, np.ndarray]) -> None:
        arrays["O"][...] = answer

    launch = Launch(NumpyKernel("table", body), (1,), (1,), ("Q", "K", "V", "O"))
    return Variant(name="table", backend="numpy", plan=lambda problem: Plan((launch,)))


def test_a_table_of_answers_fails_however_large_the_problem_is(monkeypatch: pytest.MonkeyPatch):
    table, right = memorising(PROBLEM), numpy_variant("right")
    for flops in (PROBLEM.flops, 10**13):
        monkeypatch.setattr(Problem, "flops", flops)
        holdout = HoldoutInputs(PROBLEM, "normal", seed=5)
        rows = {row.variant: row for row in compare([table, right], PROBLEM, NumpyExecutor(), holdout=holdout).rows}
        assert rows["table"].verdict == "fail"
        assert (rows["table"].reason or "").startswith("correct for the given seed, but not with --seed 5: ")
        assert (rows["right"].verdict, rows["right"].note) == ("pass", None)


def test_a_second_answer_that_is_not_expected_is_no_pass():
    """Within the budget of its inputs, and further off than correct kernels are."""
    second = Question.draw(PROBLEM, seed=5)
    limits = second.tolerance()["O"]
    between = (second.answer["O"] + (limits.allowed + limits.expected) / 2).astype(np.float32)
    right = numpy_variant("right")
    assert HoldoutInputs(PROBLEM, "normal", seed=5).failure(right, right.plan(PROBLEM), NumpyExecutor()) is None

    def body(problem: Problem, arrays: dict[str, np.ndarray]) -> None:
        arrays["O"][...] = between

    plan = Plan((Launch(NumpyKernel("between", body), (1,), (1,), ("O",)),))
    failure = HoldoutInputs(PROBLEM, "normal", seed=5).failure(right, plan, NumpyExecutor())
    assert failure is not None and "times what is expected of a correct kernel" in failure


def test_the_run_that_counts_beside_a_gpu_is_checked_too():
    """Otherwise a plugin could give a good kernel to the GPU and one that moves few bytes to the counter."""

    class Swapped(NumpyExecutor):
        def run(self, problem, plan, inputs):
            done = super().run(problem, plan, inputs)
            return dataclasses.replace(done, outputs={name: 0 * array for name, array in done.outputs.items()})

    gpu = NumpyExecutor(GPU, counts=False)
    (row,) = compare([numpy_variant("a")], PROBLEM, gpu, counter=Swapped()).rows
    assert (row.verdict, row.rank) == ("fail", None)
    assert (row.reason or "").startswith("the run whose bytes were counted is wrong: 256 of 256 ")


def test_when_bytes_are_counted_beside_a_gpu():
    small, large = Problem(), Problem(q_len=8192, kv_len=8192, heads=16)
    emulator = Device("emulator", "x", "sm_90")
    assert counts_beside("auto", small, GPU)
    assert not counts_beside("auto", large, GPU)
    assert counts_beside("always", large, GPU)
    assert not counts_beside("never", small, GPU)
    assert not counts_beside("always", small, emulator)


def test_nan_outputs_fail_and_are_not_zero():
    def body(problem: Problem, arrays: dict[str, np.ndarray]) -> None:
        arrays["O"][...] = np.float32(np.nan)

    launch = Launch(NumpyKernel("nan", body), (1,), (1,), ("O",))
    nan = Variant(name="nan", backend="numpy", plan=lambda problem: Plan((launch,)))
    (row,) = compare([nan], PROBLEM, NumpyExecutor()).rows
    assert row.verdict == "fail"
    assert math.isnan(row.max_abs_error)
    assert math.isnan(row.error_over_budget)


def test_lost_modules_come_last_and_count_as_failures():
    lost = lost_row("my_idea", "it does not import", PROBLEM)
    comparison = compare([numpy_variant("good")], PROBLEM, NumpyExecutor(), lost=[lost])
    assert [r.variant for r in comparison.rows] == ["good", "my_idea"]
    assert not comparison.all_passed


def test_unsupported_is_no_failure():
    picky = dataclasses.replace(numpy_variant("picky"), supports=lambda problem: "not today")
    assert compare([picky, numpy_variant("good")], PROBLEM, NumpyExecutor()).all_passed


def test_a_bad_regime_is_the_callers_mistake():
    with pytest.raises(UsageError, match="no regime 'x'"):
        compare([], PROBLEM, NumpyExecutor(), RunSettings(regime="x"))


def test_an_attempt_hands_out_the_execution():
    done = attempt(numpy_variant("x", lse=True), PROBLEM, NumpyExecutor(), question=Question.draw(PROBLEM))
    assert done.verdict == "pass"
    execution = done.execution
    assert isinstance(execution, Execution)
    assert set(execution.outputs) == {"O", "lse"}
