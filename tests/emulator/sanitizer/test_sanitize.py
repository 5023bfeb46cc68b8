"""What right answers hide: the sanitizer over whole plans, in several schedules, and `compare --sanitize`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from harness.cli import main
from harness.emulator.executor import EmulatorExecutor
from harness.emulator.instruments import Instruments
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.run_settings import RunSettings
from harness.model.discovery import discover
from harness.model.finding import Finding
from harness.model.operation import draw_inputs
from harness.operations.attention.problem import Problem
from harness.support.errors import KernelFault

PLUGIN = Path(__file__).parents[2] / "plugins" / "hidden_mistakes.py"
PROBLEM = Problem(heads=1, q_len=8, kv_len=8, head_dim=64)
INPUTS = draw_inputs(PROBLEM, "normal", 0)
REGISTRY = discover([PLUGIN]).registry


def check(name: str, seed: int = 0, runs: int = 6) -> tuple[Finding, ...]:
    variant = REGISTRY.get(name)
    sanitizer = EmulatorSanitizer(RunSettings(seed=seed), shuffled_runs=runs)
    return sanitizer.check(variant, PROBLEM, variant.plan(PROBLEM), INPUTS)


def kinds(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.kind for finding in findings}


def test_a_race_that_the_default_schedule_hides_is_found_in_it_and_shows_in_others() -> None:
    variant = REGISTRY.get("warps-in-order")
    plan = variant.plan(PROBLEM)
    right = EmulatorExecutor().run(PROBLEM, plan, INPUTS).outputs["O"].reshape(-1)
    assert np.array_equal(right[:64], np.tile(INPUTS["Q"].reshape(-1)[:32], 2))
    assert "RAW race" in kinds(check("warps-in-order", runs=0))
    found = check("warps-in-order")
    (difference,) = (f for f in found if f.kind == "not deterministic")
    assert difference.message.startswith("O[0, 0, 0, 32] is ") and "32 of 512 elements differ" in difference.message
    # In some other order the read comes first.
    assert {"RAW race", "WAR race"} <= kinds(found)


def test_blocks_that_rely_on_their_order() -> None:
    assert kinds(check("blocks-in-order", runs=0)) == {"RAW race"}
    assert {"RAW race", "WAR race", "uninitialised read", "not deterministic"} <= kinds(check("blocks-in-order"))


def test_an_array_that_is_overrun_into_the_next_one_is_named_with_its_line() -> None:
    (finding,) = check("one-score-too-many")
    assert (finding.kind, finding.target) == ("outside its array", "shared memory sums")
    assert "store of 4 bytes at byte offset 256 of shared memory scores, which has 256 bytes" in finding.message
    assert "that is at byte offset 0 of shared memory sums" in finding.message
    assert finding.place is not None and finding.place.file.endswith("hidden_mistakes.py")


def test_outputs_that_nobody_wrote_by_their_index() -> None:
    (finding,) = check("short-output")
    assert (finding.kind, finding.count, finding.offset) == ("output not written", 3, 4 * 509)
    assert "3 of the 512 elements of O, the first one at batch 0, head 0, row 7, column 61" in finding.message


def test_atomics_are_no_races_but_may_depend_on_the_order_unless_that_is_said() -> None:
    assert check("adds-up") == ()
    assert kinds(check("first-come-and-says-so")) - {"WAW race"} == set()
    assert "not deterministic" in kinds(check("first-come"))


def test_the_same_seed_finds_the_same_and_another_seed_takes_another_order() -> None:
    assert check("first-come", seed=3, runs=2) == check("first-come", seed=3, runs=2)
    messages = {f.message for seed in range(0, 40, 10) for f in check("first-come", seed, 1) if "order" in f.message}
    assert len(messages) > 1


def test_what_was_found_before_a_fault_is_told_with_it() -> None:
    found = check("unwritten-then-stray")
    assert [f.kind for f in found] == ["uninitialised read", "out of bounds"]
    variant = REGISTRY.get("unwritten-then-stray")
    executor = EmulatorExecutor(instruments=Instruments(sanitizer=True))
    with pytest.raises(KernelFault) as caught:
        executor.run(PROBLEM, variant.plan(PROBLEM), INPUTS)
    assert [f.kind for f in caught.value.findings] == ["uninitialised read"]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_shuffled_blocks_and_turns_do_not_depend_on_the_cores(threads: int) -> None:
    plan = REGISTRY.get("first-come").plan(PROBLEM)

    def outputs(count: int) -> list[bytes]:
        executors = [EmulatorExecutor(RunSettings(threads=count, seed=seed), shuffle=True) for seed in range(1, 5)]
        return [e.run(PROBLEM, plan, INPUTS).outputs["O"].tobytes() for e in executors]

    assert outputs(threads) == outputs(1)
    assert len(set(outputs(1))) > 1


def compared(capsys: pytest.CaptureFixture[str], *arguments: str, variants: str, status: int) -> str:
    size = ("--heads", "1", "--seq-len", "8", "--device", "emulator")
    options = ("--plugin", str(PLUGIN), "--variants", variants, *size)
    assert main(["compare", "--sanitize", *options, *arguments]) == status
    return capsys.readouterr().out


@pytest.mark.thorough
def test_compare_fails_what_has_findings_and_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    out = json.loads(compared(capsys, "--format", "json", variants="fa2-cupy,warps-in-order", status=1))
    assert out["sanitized_by"] == "the emulator's sanitizer, 3 schedules"
    rows = {row["variant"]: row for row in out["rows"]}
    assert (rows["fa2-cupy"]["verdict"], rows["fa2-cupy"]["findings"]) == ("pass", [])
    race = next(f for f in rows["warps-in-order"]["findings"] if f["kind"] == "RAW race")
    assert race["place"]["line"] and race["other"]["line"] and race["target"] == "shared memory s"
    table = compared(capsys, variants="warps-in-order", status=1)
    assert "findings" in table and "warps-in-order: RAW race (32 times): kernel warps_in_order: " in table
    text = compared(capsys, "--format", "csv", variants="fa2-cupy,short-output", status=1)
    assert {row["variant"]: row["findings"] for row in csv.DictReader(io.StringIO(text))} == {
        "fa2-cupy": "0",
        "short-output": "1",
    }


def test_without_the_option_nothing_is_sanitized(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "--variants", "fa2-cupy", "--heads", "1", "--seq-len", "8", "--device", "emulator"]
    assert main([*arguments, "--format", "json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["sanitized_by"] is None and out["rows"][0]["findings"] is None


def test_a_finding_alone_fails_a_right_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.execution.attempt import attempt
    from harness.execution.judging.question import Question

    class Found:
        name = "a test"

        def check(self, *_: object) -> tuple[Finding, ...]:
            return (Finding(kind="RAW race", message="here and there"),)

    problem = Problem(heads=1, q_len=8, kv_len=8, head_dim=64)
    question = Question.pose(problem, draw_inputs(problem))
    row = attempt(REGISTRY.get("fa2-cupy"), problem, EmulatorExecutor(), question=question, sanitizer=Found())
    assert (row.verdict, row.reason) == ("fail", "RAW race: here and there")
    assert len(row.findings or ()) == 1
