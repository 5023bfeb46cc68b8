"""`history`: what is kept, as changes, filtered, drawn and exported."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processor_time import seconds_of_ended_children

import harness
from harness.cli import main
from harness.execution.results import store as store_module
from harness.execution.results.kept_row import COLUMNS, KeptRow
from harness.execution.results.store import Store
from harness.studies.history.plot import names_of
from harness.studies.history.query import parse_since, parse_where
from harness.studies.history.timeline import COLUMNS as MEASURED
from harness.studies.history.timeline import History, histories, newest

pytestmark = pytest.mark.compiles(False)
ROOT = Path(__file__).resolve().parents[3]

ROW = KeptRow(
    study="compare",
    operation="attention",
    problem=json.dumps({"q_len": 64, "mask": "causal", "alibi": False, "scale": 0.125, "softcap": None}),
    headline="64 x 64",
    regime="normal",
    seed=0,
    variant="mine-cupy",
    backend="cupy",
    tile="Br=64",
    kernel_digest="aaaaaaaaaaaaaaaa",
    device_kind="emulator",
    device="emulated GPU",
    arch="sm_90",
    verdict="pass",
    error_over_budget=0.25,
    read_bytes=3 * 2**20,
    write_bytes=2**20,
)
Keep = Callable[..., None]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTENTION_SANDBOX_RESULTS_DIR", str(tmp_path / "kept"))
    monkeypatch.delenv("ATTENTION_SANDBOX_KEEP", raising=False)
    return tmp_path / "kept"


@pytest.fixture
def keep(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Keep:
    """Keeps a row that differs from `ROW`, at a date."""

    def kept(at: str = "2026-03-01", **changed: Any) -> None:
        monkeypatch.setattr(store_module, "_now", lambda: f"{at}T12:00:00.000Z")
        with Store(folder / "results.sqlite") as store:
            store.keep([dataclasses.replace(ROW, **changed)])

    return kept


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["history", *words]) == 0
    return capsys.readouterr().out


def cells(text: str) -> list[list[str]]:
    """The rows of all tables."""
    lines, found, inside = text.splitlines(), [], False
    for line in lines:
        inside = bool(line) and (inside or line.startswith("---"))
        if inside and not line.startswith("---"):
            found.append(line.split())
    return found


def test_what_did_not_change_is_one_line_with_its_runs(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    for day in ("01", "02", "03"):
        keep(f"2026-03-{day}")
    keep("2026-03-04", kernel_digest="bbbbbbbbbbbbbbbb", read_bytes=2 * 2**20)
    text = shown(capsys)
    assert "compare: 64 x 64; inputs normal, seed 0; emulated GPU" in text
    assert cells(text) == [
        ["mine-cupy", "2026-03-01", "12:00", "2026-03-03", "12:00", "3", "aaaaaaaa", "Br=64", "pass", "0.250", "4.00"],
        ["mine-cupy", "2026-03-04", "12:00", "-", "1", "bbbbbbbb", "Br=64", "pass", "0.250", "3.00", "-25.00", "%"],
    ]
    assert len(cells(shown(capsys, "--runs"))) == 4


@pytest.mark.parametrize(
    "changed",
    [
        {"kernel_digest": "b" * 16},
        {"verdict": "fail"},
        {"read_bytes": 3 * 2**20 + 1},
        {"error_over_budget": 0.26},
    ],
    ids=str,
)
def test_any_change_is_a_line(keep: Keep, changed: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    keep()
    keep("2026-03-02", **changed)
    keep("2026-03-03", **changed)
    lines = cells(shown(capsys))
    assert len(lines) == 2
    if "read_bytes" in changed:
        assert lines[1][-1] == "+1"  # what rounds to nothing is told in bytes


def test_times_within_noise_are_no_change_and_others_are(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    for low, median in ((1.0, 1.01), (1.01, 1.02), (1.2, 1.21)):
        keep(time_low_ms=low, time_ms=median, time_high_ms=median + 0.01, study="bench")
    lines = cells(shown(capsys))
    assert [line[-1] for line in lines] == ["1.0100", "%"] and lines[1][-2] == "+19.80"
    keep(kernel_digest="c" * 16, time_low_ms=1.2, time_ms=1.211, time_high_ms=1.22, study="bench")
    assert cells(shown(capsys))[-1][-1] == "noise"


def test_other_problems_inputs_studies_and_devices_are_other_histories(keep: Keep) -> None:
    for changed in (
        {},
        {"problem": "{}"},
        {"seed": 1},
        {"study": "traffic"},
        {"device": "other"},
        {"asked_tile": "Br=8"},
    ):
        keep(**changed)
    assert [len(history.lines) for history in harness.history().result] == [1] * 6


def test_campaigns_are_added_up_whatever_their_seeds(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = dict.fromkeys(("problem", "headline", "regime", "read_bytes", "write_bytes", "tile"))
    for seed in (3, 4):
        keep(study="fuzz", seed=seed, examples=100, error_over_budget=seed / 9, **unknown)
    (line,) = cells(shown(capsys, "mine-cupy"))
    assert line[-3:] == ["aaaaaaaa", "pass", "200"]


def test_tiles_that_tune_tried_are_lines_of_one_table(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    """A tile that somebody asked for has a table of its own: it is no answer to the same question."""
    for study in ("tune", "compare"):
        for tile in ("Br=64", "Br=32"):
            keep(study=study, tile=tile, asked_tile=tile)
    text = shown(capsys)
    assert text.count("tune: ") == 1 and text.count("compare: ") == 2
    assert [row[5] for row in cells(text)] == ["Br=64", "Br=32", "Br=64", "Br=32"]


def test_a_figure_that_came_later_is_no_change() -> None:
    run = dict.fromkeys(MEASURED) | {"variant": "v", "study": "compare", "verdict": "pass", "kept_at": "1"}
    (history,) = histories([tuple(run.values()), tuple((run | {"read_bytes": 1, "write_bytes": 2}).values())])
    (line,) = history.lines
    assert line.runs == 2 and line.figures.total_bytes == 3


def test_the_newest_lines_stay(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    for day in range(1, 7):
        keep(f"2026-03-0{day}", variant="ab"[day % 2] + "-cupy", kernel_digest=f"{day}" * 16)
    text = shown(capsys, "--limit", "3")
    assert sorted(line[1] for line in cells(text)) == ["2026-03-04", "2026-03-05", "2026-03-06"]
    assert "3 older lines are left out, --limit shows more" in text
    found, left_out = newest(harness.history(limit=100).result, 6)
    assert (len(found), left_out) == (2, 0)


@pytest.mark.parametrize(
    ("words", "variants"),
    [
        (["mine-*"], "mine-cupy"),
        (["[!m]*"], "other-numba"),
        (["mine-cupy", "other-numba"], "mine-cupy other-numba"),
        (["--study", "traffic"], "other-numba"),
        (["--operation", "softmax"], "other-numba"),
        (["--where", "q_len=64"], "mine-cupy"),
        (["--where", "q-len=64", "--where", "mask=causal"], "mine-cupy"),
        (["--where", "alibi=false", "--where", "softcap=none", "--where", "scale=0.125"], "mine-cupy"),
        (["--where", "q_len=64", "--where", "mask=none"], ""),
        (["--since", "2026-04-01"], "other-numba"),
        (["--since", "2026-03-01T12:00:01"], "other-numba"),
        (["--since", "2026-03-01"], "mine-cupy other-numba"),
    ],
)
def test_filters(keep: Keep, words: list[str], variants: str, capsys: pytest.CaptureFixture[str]) -> None:
    keep()
    keep(
        "2026-04-01", variant="other-numba", study="traffic", operation="softmax", problem='{"rows": 3, "mask": "none"}'
    )
    rows = json.loads(shown(capsys, *words, "--format", "json"))["rows"]
    assert " ".join(row["variant"] for row in rows) == variants
    assert {line[0] for line in cells(shown(capsys, *words))} == set(variants.split())


def test_csv_json_and_the_exported_file_have_every_field(keep: Keep, tmp_path: Path, capsys: Any) -> None:
    keep()
    keep("2026-03-02", time_ms=1.5, reason="a, b")
    document = json.loads(shown(capsys, "--format", "json"))
    assert [*document["rows"][0]] == [*COLUMNS] and document["rows"][0]["problem"]["q_len"] == 64
    assert document["rows"][0]["time_ms"] is None and document["rows"][1]["time_ms"] == 1.5
    assert len(json.loads(shown(capsys, "--format", "json", "--limit", "1"))["rows"]) == 1
    table = shown(capsys, "--format", "csv")
    assert [row["reason"] for row in csv.DictReader(io.StringIO(table))] == ["", "a, b"]
    assert main(["history", "--export", str(tmp_path / "out.csv")]) == 0
    assert (tmp_path / "out.csv").read_text() == table


def test_parquet_keeps_types_and_nulls(keep: Keep, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is optional")
    keep()
    keep("2026-03-02", time_ms=1.5)
    assert main(["history", "--export", str(tmp_path / "out.parquet")]) == 0
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == [*COLUMNS]
    assert table["time_ms"].to_pylist() == [None, 1.5] and table["read_bytes"].to_pylist() == [3 * 2**20] * 2
    assert str(table.schema.field("read_bytes").type) == "int64" and str(table.schema.field("tile").type) == "string"
    assert str(table["kept_at"][1].as_py()) == "2026-03-02 12:00:00+00:00"


def test_without_pyarrow_it_says_what_to_install(keep: Keep, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    keep()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["history", "--export", str(tmp_path / "out.parquet")]) == 2
    error = capsys.readouterr().err
    assert "pip install pyarrow, or name a .csv" in error and error.count("\n") == 1
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_picture_has_a_panel_for_each_figure_that_is_known(keep: Keep, tmp_path: Path, suffix: str) -> None:
    keep()
    keep("2026-03-02", read_bytes=2**20, kernel_digest="b" * 16)
    path = tmp_path / f"out.{suffix}"
    assert main(["history", "--plot", str(path)]) == 0
    content = path.read_bytes()
    if suffix == "svg":
        text = content.decode()
        assert "error / budget" in text and "MiB at the sectors level" in text and "milliseconds" not in text
        assert "mine-cupy" in text
    else:
        assert content.startswith(b"\x89PNG")


def test_lines_are_called_after_what_tells_them_apart() -> None:
    plain = History("fa2-cupy", "compare", "attention", "batch 1, 256 x 256, float32", "normal", 0, None, None, ())
    other_problem = dataclasses.replace(plain, headline="batch 1, 128 x 128, float32")
    assert names_of([plain, dataclasses.replace(plain, variant="fa1-cupy")]) == ["fa2-cupy", "fa1-cupy"]
    assert names_of([plain, dataclasses.replace(plain, study="bench")]) == ["fa2-cupy, compare", "fa2-cupy, bench"]
    tiles = [dataclasses.replace(plain, study="tune", asked_tile=tile) for tile in ("Br=64", "Br=32")]
    assert names_of(tiles) == ["fa2-cupy, Br=64", "fa2-cupy, Br=32"]
    assert names_of([plain, dataclasses.replace(plain, asked_tile="Br=32")]) == ["fa2-cupy", "fa2-cupy, Br=32"]
    assert names_of([plain, other_problem]) == ["fa2-cupy, 256 x 256", "fa2-cupy, 128 x 128"]


def test_too_many_to_draw_is_one_line(keep: Keep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(13):
        keep(variant=f"v{number}")
    assert main(["history", "--plot", str(tmp_path / "out.svg")]) == 2
    assert "draws at most 12 histories, and there are 13; select some by VARIANT" in capsys.readouterr().err


def test_nothing_kept_is_one_line_and_no_mistake(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys).startswith(f"No results are stored in {folder}/results.sqlite; compare, bench, traffic,")
    assert shown(capsys).count("\n") == 1 and not folder.exists()
    assert json.loads(shown(capsys, "--format", "json"))["rows"] == []
    Store(folder / "results.sqlite").close()
    assert shown(capsys).startswith("No results are stored in ")
    assert shown(capsys, "--format", "csv") == ",".join(COLUMNS) + "\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["fa9"], "no results of a variant 'fa9' are stored; 'history' without a name shows all"),
        (["--where", "q_len"], "'q_len' is not FIELD=VALUE, such as q_len=512"),
        (["--since", "yesterday"], "'yesterday' is not a time; write 2026-03-01"),
        (["--limit", "0"], "--limit is 0; it has to be at least 1"),
        (["--study", "show"], "invalid choice: 'show'"),
        (["--export", "out.txt"], "cannot export to out.txt: its name has to end in .csv or .parquet"),
        (["--plot", "out.txt"], "cannot draw out.txt: its name has to end in .png or .svg"),
    ],
)
def test_bad_input_is_one_line(keep: Keep, words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    keep()
    assert main(["history", *words]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1


def test_a_damaged_store_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.mkdir()
    (folder / "results.sqlite").write_bytes(b"no database at all" * 99)
    assert main(["history"]) == 2
    error = capsys.readouterr().err
    assert "is damaged" in error and "move it away" in error and error.count("\n") == 1


def test_fields_and_times_are_read_as_people_write_them() -> None:
    assert parse_where("q-len = 512") == ("q_len", 512)
    assert parse_where("mask=window:0,64") == ("mask", "window:0,64")
    assert parse_where("mask=none") == ("mask", "none")
    assert parse_where("causal=True") == ("causal", True)
    assert parse_where("lengths=1+2") == ("lengths", "1+2")
    assert parse_since("2026-03-01T12:00+02:00") == "2026-03-01T10:00:00"
    assert parse_since("7d") < parse_since("12h") < "2100"


def test_it_is_a_function_too(keep: Keep) -> None:
    keep()
    found = harness.history("mine-*", where=["q_len=64"])
    assert found.result[0].lines[0].figures.total_bytes == 4 * 2**20
    assert [row["variant"] for row in found.rows] == ["mine-cupy"]
    assert "error / budget" in found.picture().content.decode()


def test_ten_thousand_rows_need_no_array_library_and_no_second(folder: Path) -> None:
    rows = [dataclasses.replace(ROW, variant=f"v{n % 200}", kernel_digest=f"{n // 2000:016x}") for n in range(10_000)]
    with Store(folder / "results.sqlite") as store:
        store.keep(rows)
    script = (
        "import sys; from harness.cli import main; status = main(['history'])\n"
        "print({'numpy', 'cupy', 'numba', 'llvmlite', 'matplotlib', 'pyarrow'} & set(sys.modules) or 'none of them')"
    )
    best = 9.0
    for _ in range(3):
        began = seconds_of_ended_children()
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
        best = min(best, seconds_of_ended_children() - began)
    assert done.stdout.splitlines()[-1] == "none of them"
    # Some 0.25 s.
    assert best < 0.7
