"""The script around the campaigns: what it prints, what it keeps, how it ends."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from harness.studies.fuzz.settings import CampaignSettings
from tests.mutants.scoring import FAULT, MISSED, REJECTS, ROOT, Score, current_digest, score, within_repository

pytestmark = pytest.mark.compiles(False)

PATH = Path(__file__).resolve().parents[2] / "scripts" / "mutation_score.py"
KILLED = Score(
    mutant="fa2-cupy~lse-to-base-2", bug="lse to base 2", variant="fa2-cupy", sanitized=False, killed_by="wrong lse",
    reason="lse[0, 0, 0] is off", examples=3, seconds=4.0, tiles=(1, 3),
    peers={"allclose": MISSED, "flash-attention": MISSED, "xformers": REJECTS, "triton": FAULT},
    first_case="{}", smallest_case="{}", digest="0123", date="2026-11-20",
)  # fmt: skip
SURVIVOR = dataclasses.replace(
    KILLED, mutant="fa2-numba~lse-to-base-2", variant="fa2-numba", killed_by=None, reason=None, examples=200,
    tiles=None, peers={}, first_case=None, smallest_case=None,
)  # fmt: skip


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutation_score", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_survivors_are_named_in_every_format(script: ModuleType):
    for format in ("table", "markdown"):
        text = script.RENDERERS[format]([KILLED, SURVIVOR])
        text = " ".join(text.split())
        assert "1 of 2 mutants killed, of 1 bugs" in text
        assert ("SURVIVES" if format == "table" else "Precision and log-sum-exp | 2 | 1 | 3 | 3 |") in text
        assert "Survivors: 1. fa2-numba~lse-to-base-2" in text
        assert "Shrunk to more than two tiles one way: 1. fa2-cupy~lse-to-base-2" in text
        assert "of all that were killed (1): allclose 1, flash-attention 1, xformers 0, triton 0." in text
        assert "of those killed by a wrong O (0): allclose 0," in text
    first, second = json.loads(script.RENDERERS["json"]([KILLED, SURVIVOR]))
    assert (first["killed_by"], second["killed_by"]) == ("wrong lse", None)


def renewed(score: Score) -> Score:
    return dataclasses.replace(score, digest=current_digest(score.mutant))


def keep(folder: Path, *scores: Score) -> Path:
    path = folder / "scores.jsonl"
    path.write_text("".join(json.dumps(dataclasses.asdict(each)) + "\n" for each in scores))
    return path


def test_scores_of_other_texts_and_of_what_there_is_no_more_are_not_taken(script: ModuleType, tmp_path: Path):
    gone = dataclasses.replace(KILLED, mutant="fa2-cupy~no-more")
    kept = keep(tmp_path, renewed(SURVIVOR), KILLED, gone)
    output = tmp_path / "scores.md"
    words = ["--mutants", "fa2-*~*", "--kept", "--scores", str(kept), "--format", "markdown", "--output", str(output)]
    assert script.main(words) == 1
    text = " ".join(output.read_text().split())
    assert ": 1 of " in text and "from 2026-11-20 to 2026-11-20." in text
    assert [json.loads(line)["mutant"] for line in kept.read_text().splitlines()] == [SURVIVOR.mutant]


def test_what_was_kept_is_not_run_again(script: ModuleType, tmp_path: Path, monkeypatch, capsys):
    kept = keep(tmp_path, *(renewed(each) for each in (SURVIVOR, KILLED)))
    monkeypatch.setattr(script, "score", None)  # whatever ran would fail
    arguments = ["--mutants", KILLED.mutant, "--scores", str(kept), "--format", "json"]
    assert script.main(arguments) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["killed_by"] == "wrong lse" and told["tiles"] == [1, 3]
    assert script.main([*arguments, "--mutants", SURVIVOR.mutant]) == 1


def test_long_campaigns_start_first_and_a_kernels_mutants_together(script: ModuleType):
    names = ["b~1", "a~quick", "b~2", "a~long", "a~new", "b~longer"]
    seconds = {"b~1": 3.0, "a~quick": 1.0, "b~2": 9.0, "a~long": 50.0, "b~longer": 70.0}
    assert script.in_order_of_work(names, seconds) == ["b~longer", "a~long", "a~new", "a~quick", "b~2", "b~1"]
    assert script.in_order_of_work(["b~1", "a~1"], {}) == ["a~1", "b~1"]
    (slow,) = list(script.OF_HARNESS)[:1]
    assert script.in_order_of_work(["a~quick", slow], seconds)[0] == slow


@pytest.mark.thorough
@pytest.mark.compiles
def test_a_campaign_in_a_worker_comes_to_the_same(script: ModuleType, tmp_path: Path, capsys):
    words = ["--mutants", KILLED.mutant, "--scores", str(tmp_path / "scores.jsonl"), "--format", "json"]
    assert script.main([*words, "--workers", "1"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    alone = score(KILLED.mutant, CampaignSettings())
    assert (told["killed_by"], told["smallest_case"]) == (alone.killed_by, alone.smallest_case)


@pytest.mark.thorough
@pytest.mark.compiles
def test_verdicts_are_of_campaigns_that_are_run_anew_and_are_not_kept(script: ModuleType, tmp_path: Path, capsys):
    kept = keep(tmp_path, renewed(dataclasses.replace(KILLED, killed_by=None, examples=200)))
    before = kept.read_text()
    words = ["--mutants", KILLED.mutant, "--scores", str(kept), "--workers", "1", "--verdicts"]
    assert script.main([*words, "--format", "json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["killed_by"] == "wrong lse" and told["examples"] == score(KILLED.mutant, CampaignSettings()).examples
    assert (told["tiles"], told["peers"], told["smallest_case"]) == (None, {}, None) and told["first_case"]
    assert kept.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mutants", "fa9*"], "no mutant is called fa9*"),
        (["--examples", "0"], "--examples has to be at least 1"),
        (["--workers", "0"], "--workers is 0; it has to be from 1"),
        (["--workers", "all"], "neither a number of processes nor the address"),
        (["--output", "/nowhere/at/all.md"], "/nowhere"),
    ],
)
def test_a_wrong_call_says_how_to_mend_it(script: ModuleType, arguments: list[str], message: str, capsys):
    assert script.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_kept_reason_names_files_from_the_top_of_the_repository():
    assert within_repository(f"kernel k, {ROOT}/variants/a.cu:3, races") == "kernel k, variants/a.cu:3, races"
    assert within_repository(None) is None
    assert not any(f"{ROOT}/" in line for line in (ROOT / "tests/mutants/scores.jsonl").read_text().splitlines())
