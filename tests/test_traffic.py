"""The command `traffic` and what it runs, on kernels whose accesses were counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.compilers.ptxas import find_ptxas

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = ROOT / "tests" / "plugins" / "unpadded_column.py"


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["traffic", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


SMALL = ("--seq-len", 64, "--heads", 1)


@pytest.mark.parametrize("backend", ["cupy", "numba"])
def test_bytes_down_to_the_source_line(backend: str, capsys: pytest.CaptureFixture[str]):
    status, out, err = call(
        capsys, f"column-{backend}", *SMALL, "--plugin", PLUGIN, "--lines", "--format", "json"
    )  # fmt: skip
    assert (status, err) == (0, "")
    found = json.loads(out)
    levels = {level["name"]: (level["read_bytes"], level["write_bytes"]) for level in found["levels"]}
    assert levels["requested"] == (128, 128)
    assert levels["sectors"] == (32 * 32, 128)  # a sector for each lane, then four for the warp
    assert found["claim_holds"] is True
    assert [(b["name"], b["sectors"], b["ideal_sectors"]) for b in found["buffers"]] == [("Q", 32, 4), ("O", 4, 4)]
    word = "cuda" if backend == "cupy" else "numba"
    lines = {row["buffer"]: (row["file"], row["source"].endswith(f"{word}: {row['kind']}")) for row in found["lines"]}
    assert lines == {"Q": (str(PLUGIN), True), "O": (str(PLUGIN), True)}
    # The column of an unpadded tile: every lane in one bank. The tile is stored where Q is loaded.
    shared = {row["kind"]: (row["requests"], row["wavefronts"], row["ideal_wavefronts"]) for row in found["shared"]}
    assert shared == {"store": (1, 32, 1), "load": (1, 32, 1)}
    if find_ptxas() is not None:
        assert found["io_bound"]["on_chip_bytes"] > 4096


def test_without_lines_there_are_none(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, "column-cupy", *SMALL, "--plugin", PLUGIN)
    assert status == 0
    assert "Claim: exact." in out
    assert "wavefronts" not in out.lower()
    assert "cuda: load" not in out


def test_what_it_cannot_do_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    for arguments, status, words in (
        (["colum-cupy", *SMALL], 2, "did you mean 'column-cupy'"),
        (["column-cupy", "--seq-len", 200], 2, "column-cupy does not take this problem: too long"),
        (["column-cupy", *SMALL, "--regime", "nromal"], 2, "nromal"),
        (["column-cupy", *SMALL, "--output", tmp_path / "no" / "where.txt"], 2, "no folder"),
        (["column-cupy", *SMALL, "--threads", 0], 2, "--threads is 0"),
    ):
        found, _, err = call(capsys, *arguments, "--plugin", PLUGIN)
        assert (found, words in err) == (status, True), (arguments, err)
        assert err.count("\n") <= 1


def test_the_same_on_any_number_of_cores_and_with_any_seed(capsys: pytest.CaptureFixture[str]):
    arguments = ["fa1-cupy", "--seq-len", 70, "--head-dim", 16, "--lines", "--format", "json"]
    first = json.loads(call(capsys, *arguments, "--threads", 1)[1])
    second = json.loads(call(capsys, *arguments, "--threads", 2, "--seed", 3)[1])
    assert first.pop("seed") != second.pop("seed")
    assert first == second
