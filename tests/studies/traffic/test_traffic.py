"""The command `traffic` and what it runs, on kernels whose accesses were counted by hand."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import main
from harness.compilers.ptxas import find_ptxas
from harness.emulator.executor import EmulatorExecutor

ROOT = Path(__file__).resolve().parents[3]
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
    assert (status, err) == (1, "")  # it computes no attention
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
    _, out, _ = call(capsys, "column-cupy", *SMALL, "--plugin", PLUGIN)
    assert "Claim: exact." in out
    assert "wavefronts" not in out.lower()
    assert "cuda: load" not in out


def test_the_bytes_of_a_wrong_kernel_are_said_to_be_so(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, "column-cupy", *SMALL, "--plugin", PLUGIN)
    assert status == 1
    assert out.split("\n\n")[1].startswith("WRONG: column-cupy: fail: 4,064 of 4,096 elements of O")
    assert "Verdict: fail, error / budget " in out
    status, out, _ = call(capsys, "column-cupy", *SMALL, "--plugin", PLUGIN, "--format", "json")
    found = json.loads(out)
    assert (status, found["verdict"], found["reason"][:14]) == (1, "fail", "4,064 of 4,096")
    status, out, _ = call(capsys, "row-wise-cupy", "--seq-len", 16, "--heads", 1)
    assert status == 0
    assert "WRONG" not in out
    assert "Verdict: pass, error / budget 0.0" in out


def test_a_sweep_of_a_wrong_kernel_says_so_and_fails(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, *SWEEP, "--plugin", PLUGIN, "--variants", "row-wise-cupy,column-cupy")
    assert status == 1
    assert "WRONG: column-cupy at 16, 32, 64: fail: 992 of 1,024 elements" in out
    assert "WRONG: row-wise" not in out
    cells = [line.split()[2:] for line in out.splitlines() if line.split()[:1] in (["16"], ["32"], ["64"])]
    assert [[cell.endswith("!") for cell in row] for row in cells] == [[False, True]] * 3
    status, out, _ = call(capsys, *SWEEP, "--variants", "row-wise-cupy", "--count", "never")
    assert status == 0
    assert "the result was not checked" in out


def test_what_it_cannot_do_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    for arguments, status, words in (
        (["colum-cupy", *SMALL], 2, "did you mean 'column-cupy'"),
        (["column-cupy", "--seq-len", 200], 2, "column-cupy does not support this problem: too long"),
        (["column-cupy", *SMALL, "--regime", "nromal"], 2, "nromal"),
        (["column-cupy", *SMALL, "--output", tmp_path / "no" / "where.txt"], 2, "no folder"),
        (["column-cupy", *SMALL, "--threads", 0], 2, "--threads is 0"),
        (["column-cupy", *SMALL, "--gpu", "h20"], 2, "no GPU 'h20' in the table"),
        (["column-cupy", *SMALL, "--l2-bytes", 0], 2, "--l2-bytes is 0"),
    ):
        found, _, err = call(capsys, *arguments, "--plugin", PLUGIN)
        assert (found, words in err) == (status, True), (arguments, err)
        assert err.count("\n") <= 1


SWEEP = ("--sweep", "q_len=16..64", "--kv-len", 32, "--heads", 1, "--device", "emulator")


def test_a_sweep_of_a_plugin_and_its_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    pytest.importorskip("matplotlib")
    plot, roof, table = (tmp_path / name for name in ("bytes.png", "roof.svg", "table.csv"))
    files = ("--plot", plot, "--roofline", roof, "--output", table, "--format", "csv", "--gpu", "a100")
    status, out, err = call(capsys, *SWEEP, "--plugin", PLUGIN, "--variants", "fa2-cupy,column-*", *files)
    assert (status, err) == (1, "")  # `column` computes no attention
    assert out == f"Wrote {plot}.\nWrote {roof}.\n"
    rows = list(csv.DictReader(table.open()))
    assert [(row["q_len"], row["variant"]) for row in rows[:3]] == [
        ("16", "fa2-cupy"), ("16", "column-cupy"), ("16", "column-numba"),
    ]  # fmt: skip
    assert len(rows) == 9
    assert all(row["source"] == "counted" and row["claim_holds"] == "True" for row in rows)
    verdicts = {(row["variant"], row["verdict"], "were never written" in row["reason"]) for row in rows}
    assert verdicts == {("fa2-cupy", "pass", False), ("column-cupy", "fail", True), ("column-numba", "fail", True)}
    assert {row["read_bytes"] for row in rows if row["variant"] == "column-numba"} == {"1024"}
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert b"A100" in roof.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bytes.png", "roof.svg", "table.csv"]


def test_a_sweep_of_one_variant(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, "fa2-cupy", "--sweep", "heads=1,2", "--seq-len", 32, "--count", "never")
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines if line and line[0] in ("1", "2")] == ["1", "2"]
    assert "*" in out
    assert "fa1" not in out


@pytest.mark.exhaustive
def test_a_sweep_over_a_tile_size_and_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """FlashAttention-1 visits O once per tile of keys: twice the keys, half the visits."""
    pytest.importorskip("matplotlib")
    plot = tmp_path / "tiles.svg"
    arguments = ("--sweep", "Bc=8,16", "--tile", "Br=16", "--variants", "fa1-cupy", "--plot", plot)
    status, out, err = call(capsys, *SMALL, *arguments, "--format", "json")
    assert (status, err) == (0, "")
    small, large = json.loads(out)["points"]
    assert (small["tile"], large["tile"]) == ("Br=16,Bc=8", "Br=16,Bc=16")
    assert (small["source"], small["claim_holds"]) == ("counted", True)
    q_bytes, per_row = 64 * 64 * 4, 64 * 4
    once = 2 * q_bytes + q_bytes + 2 * per_row  # K, V, and what line 2 writes
    assert [point["total_bytes"] - once for point in (small, large)] == [
        visits * (3 * q_bytes + 4 * per_row) for visits in (8, 4)
    ]
    assert "Bc (keys per tile)" in plot.read_text()
    assert "tile Br=16" in plot.read_text()


def test_a_sweep_in_which_something_fails_says_so(capsys: pytest.CaptureFixture[str]):
    plugins = ("--plugin", PLUGIN, "--plugin", ROOT / "tests" / "plugins" / "broken_kernels.py")
    status, out, _ = call(capsys, *SWEEP, *plugins, "--variants", "column-cupy,bad-plan")
    assert status == 1
    assert "- bad-plan at 16, 32, 64: plan() failed" in out
    assert "Traceback" not in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "needs the name of a variant, or --sweep"),
        (["fa2-cupy", "--variants", "fa*"], "--variants goes with --sweep"),
        (["fa2-cupy", "--plot", "a.png"], "--plot goes with --sweep"),
        (["fa2-cupy", "--count", "never"], "--count goes with --sweep"),
        (["fa2-cupy", "--device", "cpu"], "invalid choice: 'cpu'"),
        (["--sweep", "q_len=1,2", "--device", "gpu"], "--device gpu reads the GPU's counters for one problem"),
        (["fa2", "--sweep", "q_len=1,2"], "no variant 'fa2'"),
        (["fa2-cupy", "--sweep", "q_len=1,2", "--variants", "fa*"], "both select"),
        (["--sweep", "q_len=1,2", "--variants", "nothing*"], "no variant 'nothing*'"),
        (["--sweep", "q_len=1,2", "--lines"], "leave out --sweep"),
        (["--sweep", "q_len=1,2", "--l2-bytes", 9], "a sweep does not model caches"),
        (["--sweep", "q_len=1,2", "--cache-control", "all"], "a sweep does not model caches"),
        (["--sweep", "q_len=1,2", "--q-len", 8], "--sweep q_len and --q-len set the same field"),
        (["--sweep", "heads=1,2", "--heads", 8], "--sweep heads and --heads set the same field"),
        (["--sweep", "seq_len=1,2", "--q-len", 8, "--kv-len", 8], "leave out one of them"),
        (["--sweep", "heads=2,3", "--kv-heads", 2], "heads (3) is not a multiple of kv_heads (2)"),
        (["--sweep", "dtype=float8"], "dtype is 'float8'"),
        (["--sweep", "tile=1,2"], "no field 'tile'"),
        (["--sweep", "tile=1,2"], "or a tile size: Br, Bc"),
        (["--sweep", "Br=0..8"], "Br begins at 0"),
        (["--sweep", "Br=1.5"], "Br takes whole numbers, not '1.5'"),
        (["--sweep", "Br=3,5"], "has no tile with Br=3 here; Br is one of 16, "),
        (["--sweep", "Br=16,32", "--tile", "Br=16"], "--sweep Br and --tile set the same tile size"),
        (["--sweep", "q_len=1,2", "--tile", "Bx=16"], "has no tile size 'Bx'; there are Br, Bc"),
        (["--sweep", "q_len=1,2", "--tile", "16"], "--tile '16' is not NAME=N"),
        (["fa2-cupy", "--tile", "Br=3"], "fa2-cupy has no tile with Br=3 here; Br is one of 16, "),
        (["fa2-cupy", "--gpu", "h20"], "no GPU 'h20'"),
        (["--sweep", "q_len=8..4"], "is empty"),
        (["--sweep", "q_len=1..2000000000"], "--sweep reaches"),
        (["--sweep", "q_len=1,2", "--gpu", "h20"], "no GPU 'h20'"),
        (["--sweep", "q_len=1,2", "--plot", "a.pdf"], "has to end in .png or .svg"),
        (["--sweep", "q_len=1,2", "--plot", "no/where/a.png"], "no folder"),
        (["--sweep", "q_len=1,2", "--roofline", "no/where/a.png"], "no folder"),
        (["--sweep", "q_len=1,2", "--plot", "a.png", "--roofline", "a.png"], "two outputs go to one file"),
    ],
)
def test_bad_input_is_one_line_before_any_work(
    arguments: list[object],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    def work(*arguments: object, **options: object) -> None:
        raise AssertionError("nothing was to be run")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(EmulatorExecutor, "run", work)
    monkeypatch.setattr(EmulatorExecutor, "prepare", work)
    status, out, err = call(capsys, *arguments)
    assert (status, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_no_plot_no_matplotlib():
    program = (
        "import sys; from harness.cli import main;"
        "assert main(['traffic', '--sweep', 'q_len=8', '--heads', '1', '--count', 'never']) == 0;"
        "assert 'matplotlib' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
def test_the_same_on_any_number_of_cores_and_with_any_seed(capsys: pytest.CaptureFixture[str]):
    arguments = ["fa1-cupy", "--seq-len", 70, "--head-dim", 16, "--lines", "--format", "json"]
    first = json.loads(call(capsys, *arguments, "--threads", 1)[1])
    second = json.loads(call(capsys, *arguments, "--threads", 2, "--seed", 3)[1])
    assert first.pop("seed") != second.pop("seed")
    assert first.pop("error_over_budget") != second.pop("error_over_budget")  # of other inputs
    assert first == second


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed: no residency, so no caches")
def test_the_caches_that_were_asked_for(capsys: pytest.CaptureFixture[str]):
    def levels(*options: object) -> dict[str, tuple[int, int]]:
        arguments = ["fa1-cupy", "--heads", 1, "--seq-len", 128, "--format", "json", *options]
        status, out, _ = call(capsys, *arguments)
        assert status == 0
        return {level["name"]: (level["read_bytes"], level["write_bytes"]) for level in json.loads(out)["levels"]}

    warm, cold = levels(), levels("--cache-control", "all")
    stored_first = (128 * 64 + 2 * 128) * 4  # O, l, m, which the first launch initialises
    assert cold["DRAM"][0] - warm["DRAM"][0] == stored_first
    assert cold["L2"] == warm["L2"]
    small = levels("--gpu", "t4", "--l2-bytes", 8192)
    assert small["sectors"] == warm["sectors"]
    assert small["DRAM"][0] > cold["DRAM"][0]
    assert small["DRAM"][1] > 0 == warm["DRAM"][1]
