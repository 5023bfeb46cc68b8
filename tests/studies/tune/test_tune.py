"""Choosing tile sizes, and what is kept of the choice."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from numpy_executor import numpy_variant

from harness.cli import main
from harness.execution.planning.tuned_tiles import recall, remember, with_tuned_tiles
from harness.execution.planning.variant_calls import declared_tiles
from harness.execution.protocol import Device
from harness.model.discovery import discover
from harness.operations.attention.problem import Problem
from harness.options.exit_status import INTERRUPTED
from harness.options.resume import UnfinishedWork
from harness.studies.tune.tile_contenders import best_tile, tile_contenders
from harness.support.errors import UsageError

PROBLEM = Problem(q_len=64, kv_len=64)
GPU = Device("gpu", "Some GPU", "sm_90")
TILE = {"Br": 16, "Bc": 16}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTENTION_SANDBOX_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["fa2-cupy", "fa2-numba"])
def test_what_was_found_best_is_taken_up_on_that_gpu_only(name: str):
    variant = discover().registry.get(name)
    assert recall(variant, PROBLEM, GPU) is None
    assert remember(variant, PROBLEM, GPU, TILE)
    (tuned,) = with_tuned_tiles([variant], PROBLEM, GPU)
    assert declared_tiles(tuned, PROBLEM) == [TILE]
    for device in (Device("gpu", "Another GPU", "sm_90"), Device("emulator", "Some GPU", "sm_90")):
        assert with_tuned_tiles([variant], PROBLEM, device) == [variant]


def test_it_holds_for_problems_of_about_that_size():
    variant = discover().registry.get("fa2-cupy")
    remember(variant, PROBLEM, GPU, TILE)
    assert recall(variant, dataclasses.replace(PROBLEM, q_len=100, kv_len=127, scale=3.0), GPU) == TILE
    for other in ({"q_len": 128}, {"head_dim": 32}, {"dtype": "float16"}, {"mask": "causal"}, {"batch": 8}):
        assert recall(variant, dataclasses.replace(PROBLEM, **other), GPU) is None, other


def test_a_tile_that_is_no_longer_declared_is_not_taken_up():
    variant = discover().registry.get("fa2-cupy")
    remember(variant, PROBLEM, GPU, {"Br": 7, "Bc": 7})
    assert recall(variant, PROBLEM, GPU) is None


def test_a_changed_kernel_has_to_be_tuned_again(monkeypatch: pytest.MonkeyPatch):
    variant = discover().registry.get("fa2-cupy")
    remember(variant, PROBLEM, GPU, TILE)
    monkeypatch.setattr("harness.execution.planning.tuned_tiles.kernel_identity", lambda kernel: "changed")
    assert recall(variant, PROBLEM, GPU) is None
    monkeypatch.setattr("harness.execution.planning.tuned_tiles.kernel_identity", lambda kernel: None)
    assert not remember(variant, PROBLEM, GPU, TILE)


def test_every_declared_tile_is_a_contender_and_the_default_comes_first():
    variant = discover().registry.get("fa1-cupy")
    contenders = tile_contenders(variant, PROBLEM)
    tiles = declared_tiles(variant, PROBLEM)
    assert [tile for tile, _ in contenders.values()] == tiles and len(tiles) > 3
    assert [declared_tiles(v, PROBLEM) for _, v in contenders.values()] == [[tile] for tile in tiles]


def test_the_default_wins_a_tie():
    contenders = {"default": (TILE, None), "other": (TILE, None)}
    assert best_tile({"other": 1, "default": 1}, contenders) == "default"
    assert best_tile({"other": 1, "default": 2}, contenders) == "other"
    assert best_tile({"other": None, "default": None}, contenders) is None


def test_a_variant_without_tiles_has_nothing_to_tune():
    with pytest.raises(UsageError, match="declares no tile sizes"):
        tile_contenders(numpy_variant("plain"), PROBLEM)


COMMAND = ["tune", "fa2-cupy", "--heads", "1", "--seq-len", "100", "--head-dim", "8", "--device", "emulator"]


@pytest.fixture
def three_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tile is a compilation of a second or more: three of them tell as much as all."""
    few = ({"Br": 64, "Bc": 64}, {"Br": 16, "Bc": 32}, {"Br": 128, "Bc": 16})
    monkeypatch.setattr(
        "harness.studies.tune.tile_contenders.declared_tiles",
        lambda *asked: [t for t in declared_tiles(*asked) if t in few],
    )


@pytest.mark.thorough
@pytest.mark.usefixtures("three_tiles")
def test_without_a_gpu_the_fewest_bytes_win(capsys: pytest.CaptureFixture):
    assert main(COMMAND) == 0
    verdict = "fa2-cupy moves the fewest bytes here with --tile Br=128,Bc=16. The default is Br=64,Bc=64."
    assert verdict in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.usefixtures("three_tiles")
def test_what_was_cut_off_goes_on_with_the_tiles_that_are_left(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("ATTENTION_SANDBOX_RESULTS_DIR", str(tmp_path / "results"))
    assert main(COMMAND) == 0
    whole = capsys.readouterr().out
    finish, counted = UnfinishedWork.finish, []

    def cut_off_after_two(work: UnfinishedWork, value: object, *name: str) -> None:
        finish(work, value, *name)
        counted.append(name)
        if len(counted) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(UnfinishedWork, "finish", cut_off_after_two)
        assert main(COMMAND) == INTERRUPTED
    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr(UnfinishedWork, "finish", lambda work, value, *name: counted.append(name))
        assert main(COMMAND) == 0
    out, err = capsys.readouterr()
    assert "resuming an interrupted command: 2 of 3 tiles are done" in err
    assert out == whole and len(counted) == 3 and len(set(counted)) == 3
