"""`traffic --trace`: a file for trace viewers beside the table, which stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli import main
from tests.text.trace_event_format import require_valid

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = ROOT / "tests" / "plugins" / "unpadded_column.py"
SMALL = ("column-cupy", "--plugin", PLUGIN, "--seq-len", 64, "--heads", 1)


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["traffic", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_trace_beside_the_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    status, out, err = call(capsys, *SMALL, "--trace", file)
    assert (status, err) == (1, "")
    assert (1, out, "") == call(capsys, *SMALL)
    document = json.loads(file.read_text())
    require_valid(document)
    assert document["otherData"]["variant"] == "column-cupy"
    assert "H200 SXM" in document["otherData"]["multiprocessors of"]
    counters = [event["args"] for event in document["traceEvents"] if event["ph"] == "C"]
    assert counters[-1] == {"read": 32 * 32, "written": 128}  # a sector for each lane, then four for the warp


def test_one_line_says_what_is_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    status, _, err = call(
        capsys, "row-wise-cupy", "--heads", 1, "--head-dim", 32, "--trace", file, "--trace-events", 100
    )  # fmt: skip
    assert status == 0
    document = json.loads(file.read_text())
    require_valid(document)
    shown = document["otherData"]["blocks"]
    assert err == f"harness: {file} contains only the blocks {shown}; a larger --trace-events N records more\n"
    count, whole = shown.split(" of ")[:2]
    assert 0 < int(count) < int(whole) == 64
    blocks = [event for event in document["traceEvents"] if event.get("cat") == "block"]
    assert len(blocks) == int(count)


@pytest.mark.compiles(False)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "trace.txt"], "cannot write a trace to trace.txt: viewers open JSON; end the name in .json"),
        (["--trace-events", "5"], "--trace-events goes with --trace FILE.json"),
        (["--trace", "t.json", "--trace-events", "0"], "--trace-events is 0; it has to be at least 1"),
        (["--trace", "no/such/t.json"], "cannot write no/such/t.json: there is no folder"),
        (["--trace", "t.json", "--output", "t.json"], "two outputs go to one file"),
        (["--trace", "t.json", "--sweep", "q_len=64..128"], "--trace shows one run of one variant; leave out --sweep"),
    ],
)
def test_what_it_cannot_do_is_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = call(capsys, "fa2-cupy", *arguments)
    assert (status, out) == (2, "")
    assert message in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
