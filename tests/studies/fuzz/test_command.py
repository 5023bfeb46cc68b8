"""`fuzz` on the command line: what it prints, how it ends, and the line that replays a failure."""

from __future__ import annotations

import csv
import io
import json
import shlex
from pathlib import Path

import pytest

from harness.cli import main

PLUGINS = Path(__file__).parents[2] / "plugins"
RIGHT = ["--plugin", str(PLUGINS / "one_thread_per_row.py"), "--device", "emulator"]
BROKEN = ["--plugin", str(PLUGINS / "broken_kernels.py"), "--device", "emulator"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Failures of other campaigns must not decide what is found here."""
    monkeypatch.setattr("harness.studies.fuzz.database.failure_folder", lambda variant, origin: tmp_path / variant)
    return tmp_path


def test_a_right_variant_passes(capfd: pytest.CaptureFixture[str]):
    status = main(["fuzz", "one-thread-per-row", *RIGHT, "--examples", "9", "--seed", "3"])
    out, err = capfd.readouterr()
    assert (status, err) == (0, "")
    assert "one-thread-per-row  pass" in out and "Seed 3" in out and "  9  " in out


def test_a_wrong_variant_fails_and_its_line_replays_it(capfd: pytest.CaptureFixture[str], own_cache: Path):
    status = main(["fuzz", "bad-answer", *BROKEN, "--examples", "20", "--seed", "3"])
    out, _ = capfd.readouterr()
    assert status == 1
    for expected in (
        "bad-answer: wrong answer, found at example",
        "smallest",
        "first wrong  O at batch 0, head 0, row 0",
    ):
        assert expected in out
    line = next(line for line in out.splitlines() if line.strip().startswith("replay"))
    words = shlex.split(line.strip().removeprefix("replay"))
    assert words[:4] == ["python", "-m", "harness", "fuzz"]
    assert main(words[3:]) == 1
    again, _ = capfd.readouterr()
    wrong = next(line for line in out.splitlines() if "first wrong" in line)
    assert wrong.split() in [line.split() for line in again.splitlines()]
    assert (own_cache / "bad-answer").is_dir()


def test_json_has_the_failure_and_what_replays_it(capfd: pytest.CaptureFixture[str]):
    status = main(["fuzz", "bad-address", "bad-plan", *BROKEN, "--examples", "5", "--seed", "1", "--format", "json"])
    campaigns = json.loads(capfd.readouterr().out)["campaigns"]
    assert status == 1
    assert [(c["variant"], c["verdict"], c["kind"]) for c in campaigns] == [
        ("bad-address", "fail", "out of bounds"),
        ("bad-plan", "fail", "plan error"),
    ]
    assert "out-of-bounds store" in campaigns[0]["failure"]["reason"]
    assert campaigns[0]["failure"]["case"]["q_len"] == 1
    assert "--replay" in campaigns[0]["replay"] and campaigns[0]["seed"] == 1


def test_csv_has_a_row_per_variant(capfd: pytest.CaptureFixture[str]):
    main(["fuzz", "bad-plan", *BROKEN, "--examples", "5", "--format", "csv"])
    (row,) = csv.DictReader(io.StringIO(capfd.readouterr().out))
    assert (row["variant"], row["verdict"], row["kind"]) == ("bad-plan", "fail", "plan error")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--examples", "0"], "--examples is 0"),
        (["--tiles", "0"], "--tiles is 0"),
        (["--seconds", "-1"], "--seconds is -1"),
        (["--properties", "colour"], "no property 'colour'"),
        (["--replay", "{"], "not a case that 'fuzz' printed"),
        (["--replay", '{"foo": 1}'], "not a case that 'fuzz' printed: attention has no field 'foo'"),
        (["--replay", '{"regime": "cold"}'], "no regime 'cold'"),
        (["--step-limit", "0"], "--step-limit is 0"),
    ],
)
def test_a_wrong_call_is_one_line(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]):
    assert main(["fuzz", "one-thread-per-row", *RIGHT, *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == "" and message in err and len(err.splitlines()) == 1


def test_a_name_that_nobody_has_is_told(capfd: pytest.CaptureFixture[str]):
    assert main(["fuzz", "one-thread-per-row", "nobody", *RIGHT]) == 2
    assert "no variant 'nobody'" in capfd.readouterr().err


def test_a_replay_of_many_variants_is_told(capfd: pytest.CaptureFixture[str]):
    assert main(["fuzz", *BROKEN, "--replay", "{}"]) == 2
    assert "name one" in capfd.readouterr().err


def test_a_replay_that_passes_or_is_refused(capfd: pytest.CaptureFixture[str]):
    case = '{"heads": 1, "q_len": 3, "kv_len": 3, "head_dim": 4, "seed": 0}'
    assert main(["fuzz", "one-thread-per-row", *RIGHT, "--replay", case]) == 0
    assert "passes" in capfd.readouterr().out
    refused = '{"heads": 1, "q_len": 3, "kv_len": 3, "head_dim": 4, "dtype": "float16"}'
    assert main(["fuzz", "one-thread-per-row", *RIGHT, "--replay", refused]) == 1
    assert "it is written for float32" in capfd.readouterr().out


def test_the_sanitizer_finds_what_a_right_answer_hides(capfd: pytest.CaptureFixture[str]):
    plugin = ["--plugin", str(PLUGINS / "hidden_mistakes.py"), "--device", "emulator"]
    assert main(["fuzz", "short-output", *plugin, "--sanitize", "--examples", "5", "--seed", "1"]) == 1
    out = capfd.readouterr().out
    assert "short-output: output not written" in out and "--sanitize --replay" in out
