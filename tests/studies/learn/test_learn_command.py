"""`learn`: list, run, predict, write a task, check a solution."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import harness
from harness.cli import main
from harness.studies.learn import command
from harness.studies.learn.steps import find_lessons
from harness.text.report import Report
from harness.text.study_result import StudyResult

LESSONS = find_lessons()
STEP = "5"
"""The step with the smallest kernel."""


@pytest.fixture(autouse=True)
def own_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTENTION_SANDBOX_RESULTS_DIR", str(tmp_path / "kept"))


@pytest.mark.compiles(False)
def test_it_lists_all_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn"]) == 0
    shown = capsys.readouterr().out
    assert all(lesson.name in shown for lesson in LESSONS.values())
    assert f"0 of {len(LESSONS)} tasks solved" in shown
    assert "learn task 1" in shown


def test_a_step_shows_page_answer_table_times_and_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["learn", STEP, "--predict", "128KiB"]) == 0
    shown = capsys.readouterr().out
    page, answer = shown.index("## What changes"), shown.index("You predicted 131,072; counted: 16,842,752 bytes")
    table = shown.index("counted             step 4      step 5  Numba twin")
    times, task = shown.index("Predicted time: 33.7 us"), shown.index("## Your task")
    assert page < answer < table < times < task
    assert "cause" not in shown[answer:task], "multiprocessors and requests are taught in step 6"
    assert "## Published figures" not in shown
    assert shown.rstrip().endswith("README.md: A worked row, Published figures.")
    assert "Each row reads K and V from end to end" not in shown[:answer], "the page must not tell the answer"
    assert str(tmp_path / "kept" / "path_5.svg") in shown
    assert (tmp_path / "kept" / "path_5.svg").read_text().startswith("<svg")
    assert str(tmp_path) not in shown.replace(str(tmp_path / "kept"), ""), "kernel.cu is in no folder of the learner"

    assert main(["learn", "--format", "json"]) == 0
    (step,) = [each for each in json.loads(capsys.readouterr().out)["steps"] if each["step"] == STEP]
    assert (step["ran"], step["prediction_right"], step["solved"]) == (True, False, False)


def test_a_prediction_that_is_nearly_right_is_listed_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "path.json"
    assert main(["learn", STEP, "--predict", "16,777,216", "--progress", str(path)]) == 0
    assert main(["learn", "--progress", str(path)]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if re.match(rf" *{STEP} +row-wise", line)]
    assert "nearly" in row and "wrong" not in row


def test_from_python_it_is_a_result_with_a_picture() -> None:
    found = harness.learn(STEP, predict="16,842,752")
    assert found.passed
    assert found.to_dict()["prediction_right"] is True
    assert found.picture().content.startswith(b"<svg")
    assert found.rows[0]["figure"] == "bytes in all"


def test_a_task_is_written_solved_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "task", STEP]) == 0
    assert "learn check 5 path_5_row_wise.cu" in capsys.readouterr().out
    path = Path("path_5_row_wise.cu")
    assert path.read_text() == LESSONS[STEP].task_file
    assert main(["learn", "check", STEP, str(path)]) == 1
    assert capsys.readouterr().out.startswith("Not yet. Fails with one key")

    assert main(["learn", "task", STEP]) == 2
    assert "path_5_row_wise.cu is there already; remove it" in capsys.readouterr().err

    path.write_text(LESSONS[STEP].solution)
    assert harness.check(STEP, str(path)).passed
    assert main(["learn"]) == 0
    assert f"1 of {len(LESSONS)} tasks solved" in capsys.readouterr().out


def test_a_file_that_does_not_compile_is_answered_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.cu").write_text(LESSONS[STEP].solution.replace("float q = ", "flaot q = "))
    assert main(["learn", "check", STEP, "mine.cu"]) == 1
    shown = capsys.readouterr().out
    assert "The file does not compile." in shown
    assert 'mine.cu(10): error: identifier "flaot" is undefined' in shown


def test_an_error_above_the_include_is_answered_with_its_line_too() -> None:
    Path("mine.cu").write_text(f"flaot x;\n{LESSONS[STEP].solution}".replace("float q = ", "int unused; float q = "))
    text = harness.check(STEP, "mine.cu").result.text
    assert "\nmine.cu(1): error: " in text and "warning" not in text and "attention.cu" not in text
    Path("mine.cu").write_text(f"#define warp_sum 1\n{LESSONS[STEP].solution}")
    assert "\nwarp.cuh(8): error: " in harness.check(STEP, "mine.cu").result.text


@pytest.mark.compiles(False)
def test_a_terminal_is_asked_until_the_answer_is_a_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers, predicted = iter(["much", "128 KiB"]), []

    def run(request: object, lessons: object, lesson: object, text: str | None) -> StudyResult[None]:
        predicted.append(text)
        return StudyResult(None, Report(lambda: ["what was counted"], list, lambda: ([], ()), dict), passed=True)

    monkeypatch.setattr(command, "_run", run)
    monkeypatch.setattr("builtins.input", lambda prompt: next(answers))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["learn", STEP]) == 0
    shown = capsys.readouterr().out
    assert predicted == ["128 KiB"]
    assert shown.index("## What changes") < shown.index("Prediction. Q, K, V") < shown.index("is no prediction")
    assert shown.index("what was counted") < shown.index("Each row reads all of K and V")


@pytest.mark.compiles(False)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["99"], "there is no step '99'; steps: 1, 2"),
        (["naitve"], "there is no step 'naitve'; did you mean 'native'?"),
        (["1", "--predict", "much"], "'much' is no prediction"),
        (["1", "2"], "learn 1 2: write learn, learn STEP"),
        (["task"], "learn task: write learn, learn STEP"),
        (["check", "1"], "learn check 1: write learn, learn STEP"),
        (["check", "1", "missing.cu"], "cannot read missing.cu"),
        (["1", "--steps", "nowhere"], "--steps nowhere: there is no such folder"),
        (["new-step", "My Step"], "'My Step' cannot name a step"),
        (["new-step", "native"], "there is a step 'native' already"),
    ],
)
def test_a_wrong_call_is_answered_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["learn", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_new_step_runs_and_its_solutions_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "new-step", "my-idea", "--steps", "."]) == 0
    number = next(iter(set(find_lessons(Path())) - set(LESSONS)))
    assert f"learn {number} --steps ." in capsys.readouterr().out
    lesson = find_lessons(Path())[number]
    assert main(["learn", number, "--steps", ".", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["verdicts"].values()) == {"pass"}
    Path("mine.cu").write_text(lesson.solution)
    assert main(["learn", "check", number, "mine.cu", "--steps", "."]) == 0
    Path("mine.cu").write_text(lesson.task.mistakes[0].edits[0].apply(lesson.solution))
    assert main(["learn", "check", number, "mine.cu", "--steps", "."]) == 1
    assert "Hint: Correct o by the same factor as l." in capsys.readouterr().out
    assert main(["learn", "new-step", "my-idea", "--steps", "."]) == 2
    assert "is there already" in capsys.readouterr().err
