"""A kernel that writes into an input, though its answer is right: every command tells of it, with the line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from emulators import emulator
from plugins import spoilt_inputs

from harness.cli import main
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.judging.kept_inputs import require_kept
from harness.model.cases.case import Case
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.operations.attention.problem import Problem
from harness.studies.fuzz.examining.examination import examine
from harness.studies.show.orders import reveal_if_it_runs
from harness.support.errors import KernelFault

pytestmark = pytest.mark.compiles

PLUGIN = Path(__file__).parents[2] / "plugins" / "spoilt_inputs.py"
REGISTRY = discover([PLUGIN]).registry
SPOILS, STORES_AGAIN = REGISTRY.get("scales-q"), REGISTRY.get("stores-q-again")
PROBLEM = Problem(heads=1, q_len=5, kv_len=7, head_dim=4)
MESSAGE = (
    rf"^kernel scales_q, .*spoilt_inputs.py:{spoilt_inputs.LINE}: store into Q, which is an input: 20 of its 20 "
    r"elements changed, the first at batch 0, head 0, row 0, column 0; inputs may only be read$"
)


def test_the_fault_names_kernel_line_buffer_and_first_index() -> None:
    with pytest.raises(KernelFault, match=MESSAGE) as caught:
        emulator().run(PROBLEM, SPOILS.plan(PROBLEM), draw_inputs(PROBLEM))
    assert caught.value.kind == "input written"


def test_what_is_stored_again_as_it_was_changes_nothing_even_if_it_is_nan() -> None:
    inputs = draw_inputs(PROBLEM)
    inputs["Q"][0, 0, 2] = np.nan
    assert emulator().run(PROBLEM, STORES_AGAIN.plan(PROBLEM), inputs).outputs["O"].size


def test_the_sanitizer_finds_every_store_into_an_input_with_its_thread() -> None:
    for variant in (SPOILS, STORES_AGAIN):
        inputs = draw_inputs(PROBLEM)
        found = EmulatorSanitizer(shuffled_runs=0).check(variant, PROBLEM, variant.plan(PROBLEM), inputs)
        (finding,) = found
        assert (finding.kind, finding.target, finding.offset) == ("input written", "buffer Q", 0)
        assert finding.place is not None
        assert (finding.place.line, finding.place.thread, finding.count) == (spoilt_inputs.LINE, (0, 0, 0), 20)
        assert finding.message.endswith("buffer Q, which is an input and may only be read")


def test_a_campaign_finds_it_and_the_order_of_sums_says_why_there_is_none() -> None:
    answer = examine(Case(PROBLEM, "normal", 0), SPOILS, emulator())
    assert answer.finding is not None and answer.finding.kind == "input written"
    assert "store into Q" in (reveal_if_it_runs(SPOILS, PROBLEM, emulator()).reason or "")


def test_on_a_gpu_it_ends_no_process() -> None:
    executor = emulator()
    executor.device = dataclasses.replace(executor.device, kind="gpu")
    answer = examine(Case(PROBLEM, "normal", 0), SPOILS, executor)
    assert answer.finding is not None and answer.finding.kind == "input written" and not answer.broken


def test_compare_fails_it(capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--heads", "1", "--q-len", "5", "--kv-len", "7", "--head-dim", "4", "--device", "emulator"]
    assert main(["compare", "--plugin", str(PLUGIN), "--variants", "s*-q*", *size, "--format", "json"]) == 1
    rows = {row["variant"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert (rows["scales-q"]["verdict"], rows["stores-q-again"]["verdict"]) == ("error", "pass")
    assert "store into Q, which is an input" in rows["scales-q"]["reason"]


def test_run_fails_it_and_leaves_no_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs, options = draw_inputs(PROBLEM), []
    for name, array in inputs.items():
        np.save(tmp_path / f"{name}.npy", array)
        options += [f"--{name.lower()}", str(tmp_path / f"{name}.npy")]
    out = tmp_path / "O.npy"
    asked = ["run", "scales-q", "--plugin", str(PLUGIN), *options, "--out", str(out), "--device", "emulator"]
    assert main(asked) == 1
    assert "store into Q, which is an input" in capsys.readouterr().out
    assert not out.exists()


@pytest.mark.compiles(False)
def test_the_first_change_is_told_of_the_input_that_has_it() -> None:
    given = draw_inputs(PROBLEM)
    after = {name: array.copy() for name, array in given.items()}
    after["V"][0, 0, 6, 1] = -0.0 if given["V"][0, 0, 6, 1] == 0 else np.nan
    with pytest.raises(KernelFault, match=r"^somebody: store into V.*: 1 of its 28 elements .* row 6, column 1;"):
        require_kept(PROBLEM.inputs, given, lambda tensor: after[tensor.name], lambda tensor: "somebody")
