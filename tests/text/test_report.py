from __future__ import annotations

import csv
import dataclasses
import io
import json
import math

import pytest

from harness.execution.judging.accuracy import SANITIZE_HINT
from harness.execution.outcome import Comparison, OutputErrors, Row
from harness.execution.protocol import Device
from harness.model.finding import Finding, Place
from harness.model.plan import Plan
from harness.model.variant import Registry, Variant
from harness.operations.attention.problem import Problem
from harness.studies.listing.command import variants_report
from harness.support.version import VERSION
from harness.text.comparison_report import comparison_report, render_comparison
from harness.text.tables import FORMATS

MIB = 2**20
PROBLEM = Problem(heads=4, kv_heads=2, q_len=512, kv_len=512, mask="causal")
EMULATOR = Device("emulator", "32 lanes on a CPU", "sm_90")
GPU = Device("gpu", "NVIDIA H200", "sm_90")

PASSING = Row(
    rank=1,
    variant="fa2-cupy",
    algorithm="fa2",
    backend="cupy",
    verdict="pass",
    compulsory_bytes=2 * MIB,
    max_abs_error=1e-7,
    error_over_budget=0.0213,
    error_over_expected=0.34,
    optional_errors={"lse": OutputErrors(1e-6, 0.051, 0.12)},
    launches=1,
    allocated_bytes=int(1.0625 * MIB),
    read_bytes=3 * MIB,
    write_bytes=MIB,
    total_bytes=4 * MIB,
    claimed_bytes=4 * MIB,
    claim_holds=True,
)
FAILING = dataclasses.replace(
    PASSING,
    rank=None,
    variant="odd",
    verdict="fail",
    reason="3 of 9 elements of O are off",
    error_over_budget=math.nan,
    max_abs_error=math.inf,
    claimed_bytes=5 * MIB,
    claim_holds=False,
    note="claims more than was counted",
)
BROKEN = Row(
    variant="broken",
    algorithm=None,
    backend=None,
    verdict="error",
    reason="kernel x does not compile:\nx.cu(3): error | expected ;",
    compulsory_bytes=2 * MIB,
)


def comparison(*rows: Row, device: Device = EMULATOR, **fields: object) -> Comparison:
    values = {"problem": PROBLEM, "regime": "normal", "seed": 7, "device": device, "counted_on": EMULATOR, "rows": rows}
    return Comparison(**(values | fields))


def cells(text: str, variant: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if variant in line.split() and "  " in line)


def test_the_table_tells_the_story():
    text = render_comparison(comparison(PASSING, FAILING, BROKEN), "table")
    lines = text.splitlines()
    assert lines[0] == (
        "batch 1, 4 heads (2 for K and V), 512 x 512, head_dim 64, float32, causal, scale 0.125; inputs normal, seed 7"
    )
    # The worse of O and lse.
    assert cells(text, "fa2-cupy") == [
        "1",
        "fa2-cupy",
        "pass",
        "0.051",
        "0.340",
        "3.00",
        "1.00",
        "4.00",
        "2.00",
        "exact",
        "1.06",
        "1",
    ]
    assert cells(text, "odd")[2:4] == ["fail", "NaN"]
    assert cells(text, "odd")[9:11] == ["wrong,", "+25.00"]
    assert cells(text, "broken") == ["-", "broken", "error"] + ["-"] * 9
    assert "Device: 32 lanes on a CPU. Ranked by total bytes moved" in text
    assert "MiB: 2^20 bytes, counted in the 32-byte sectors" in text
    assert max(map(len, lines)) <= 120
    assert "odd: fail: 3 of 9 elements of O are off" in lines
    assert "odd: claims more than was counted" in lines
    assert "broken: error: kernel x does not compile:\n    x.cu(3): error | expected ;\n" in text
    assert "ms" not in lines[2] + lines[3]


def test_a_finding_that_is_the_reason_is_printed_once_and_first():
    place = Place("k.cu", 3, (0, 0, 0), (0, 0, 0))
    race = Finding(
        kind="RAW race", message="line 3 may read", kernel="k", place=place, other=place, target="s", count=7
    )
    early = dataclasses.replace(race, kind="uninitialised read", message="nothing written", other=None)
    racy = dataclasses.replace(FAILING, variant="racy", reason="RAW race: line 3 may read", findings=(race, early))
    found = comparison(racy, sanitized_by="the sanitizer")
    lines = comparison_report(found, "fuzz {}".format).render("table").splitlines()
    at = lines.index("racy: fail: RAW race (7 times): line 3 may read")
    assert lines[at + 1] == "    From the same cause: uninitialised read at k.cu:3"
    assert sum("may read" in line for line in lines) == 1
    assert "Next: fuzz racy --sanitize" in lines


def test_advice_to_run_the_sanitizer_is_left_out_if_it_ran():
    wrong = dataclasses.replace(FAILING, reason=f"3 elements{SANITIZE_HINT}", findings=())
    assert "odd: fail: 3 elements; --sanitize names the line" in render_comparison(comparison(wrong), "table")
    text = render_comparison(comparison(wrong, sanitized_by="the sanitizer"), "table")
    assert "odd: fail: 3 elements\n" in text and "--sanitize" not in text


def test_a_reason_that_several_have_is_told_once():
    again, another = (dataclasses.replace(BROKEN, variant=name) for name in ("again", "another"))
    other = dataclasses.replace(another, reason="something else")
    text = render_comparison(comparison(BROKEN, other, again), "table")
    assert "broken, again: error: kernel x does not compile:\n" in text and text.count("kernel x") == 1
    assert "another: error: something else" in text.splitlines()


def test_a_claim_is_wrong_if_only_its_total_is_right():
    swapped = dataclasses.replace(FAILING, claimed_bytes=FAILING.total_bytes)
    text = render_comparison(comparison(swapped), "table")
    assert cells(text, "odd")[9] == "wrong"


def test_tile_sizes_have_a_column_where_they_were_asked_for():
    tiled = dataclasses.replace(PASSING, tile="Br=16,Bc=32")
    text = render_comparison(comparison(tiled, BROKEN, tile="Br=16"), "table")
    assert text.splitlines()[0].endswith("seed 7; tile Br=16")
    assert cells(text, "fa2-cupy")[2] == "Br=16,Bc=32"
    assert cells(text, "broken")[2] == "-"
    assert "Br" not in render_comparison(comparison(tiled), "table")
    found = json.loads(render_comparison(comparison(tiled, tile="Br=16"), "json"))
    assert (found["tile"], found["rows"][0]["tile"]) == ("Br=16", "Br=16,Bc=32")


def test_an_undecided_answer_has_its_reason_below_and_its_power_in_json():
    reason = "suspicious: within its budget, but 1.25 times the error that is expected of a correct kernel"
    odd = dataclasses.replace(
        PASSING,
        verdict="undecided",
        reason=reason,
        power=12.5,
        nearest_wrong_answer="zeros",
        optional_errors={"lse": OutputErrors(0.0, 0.0, 1.25)},
    )
    text = render_comparison(comparison(odd), "table")
    assert cells(text, "fa2-cupy")[4] == "1.250"
    assert f"fa2-cupy: undecided: {reason}" in text.splitlines()
    (row,) = json.loads(render_comparison(comparison(odd), "json"))["rows"]
    assert (row["verdict"], row["power"], row["nearest_wrong_answer"]) == ("undecided", 12.5, "zeros")
    assert not comparison(odd).all_passed and comparison(odd).nothing_wrong


def test_a_gpu_has_a_column_for_time():
    fast = dataclasses.replace(PASSING, time_ms=0.0123)
    text = render_comparison(comparison(fast, device=GPU), "table")
    assert cells(text, "fa2-cupy")[-1] == "0.0123"
    assert "Device: NVIDIA H200 (sm_90). Ranked by the time" in text
    assert "before any cache. Counted on: 32 lanes on a CPU." in text
    assert "Bytes were not counted" in render_comparison(comparison(fast, device=GPU, counted_on=None), "table")


def test_small_problems_show_more_decimals():
    small = comparison(dataclasses.replace(PASSING, read_bytes=1024), problem=Problem(q_len=4, kv_len=4))
    assert "0.0010" in cells(render_comparison(small, "table"), "fa2-cupy")


def test_json_is_the_contract():
    text = render_comparison(comparison(PASSING, FAILING, BROKEN), "json")
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert found["problem"] == {
        "batch": 1, "heads": 4, "kv_heads": 2, "q_len": 512, "kv_len": 512, "head_dim": 64,
        "dtype": "float32", "causal": True, "mask": "causal", "scale": 0.125,
        "softcap": None, "alibi": False, "bias": None, "sinks": False, "dropout": 0.0, "dropout_seed": 0,
        "layout": "bhsd",
    }  # fmt: skip
    assert found["device"] == {"kind": "emulator", "name": "32 lanes on a CPU", "arch": "sm_90", "count": 1}
    assert (found["regime"], found["seed"]) == ("normal", 7)
    first, second, third = found["rows"]
    wanted = {
        "rank": 1, "variant": "fa2-cupy", "algorithm": "fa2", "backend": "cupy", "verdict": "pass", "reason": None,
        "max_abs_error": 1e-7, "error_over_budget": 0.0213, "error_over_expected": 0.34, "launches": 1,
        "allocated_bytes": 1114112, "read_bytes": 3 * MIB, "write_bytes": MIB, "total_bytes": 4 * MIB,
        "compulsory_bytes": 2 * MIB, "claimed_bytes": 4 * MIB, "time_ms": None,
    }  # fmt: skip
    assert wanted.items() <= first.items()
    # Neither NaN nor infinity is JSON, and neither is 0.
    assert second["error_over_budget"] is None
    assert second["max_abs_error"] is None
    assert third["total_bytes"] is None
    assert third["reason"].count("\n") == 1


def test_csv_has_every_field_and_raw_bytes():
    rows = list(csv.DictReader(io.StringIO(render_comparison(comparison(PASSING, BROKEN), "csv"))))
    of_lse = {f"lse_{field.name}" for field in dataclasses.fields(OutputErrors)}
    assert {field.name for field in dataclasses.fields(Row)} - {"optional_errors"} | of_lse == set(rows[0])
    assert rows[0]["total_bytes"] == str(4 * MIB)
    assert rows[1]["total_bytes"] == ""
    assert rows[1]["reason"] == BROKEN.reason


def test_markdown_is_one_table():
    text = render_comparison(comparison(PASSING, dataclasses.replace(BROKEN, variant="a|b")), "markdown")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert "total / compulsory" in table[0]
    assert set(table[1]) <= set("|:-")
    assert "a\\|b" in table[3]


def test_the_users_own_arrays_have_no_regime():
    assert "; the user's arrays" in render_comparison(comparison(PASSING, regime=None, seed=None), "table")


@pytest.mark.parametrize("format", FORMATS)
def test_no_rows_is_no_crash(format: str):
    assert render_comparison(comparison(), format).endswith("\n")
    assert variants_report([], Registry()).render(format).endswith("\n")


def test_the_listing():
    registry = Registry()
    registry.origin = "plugin mine.py"
    registry.add(Variant(name="mine", plan=lambda problem: Plan(()), algorithm="fa9", backend="numba", idea="a | b"))
    table = variants_report(list(registry), registry).render("table").splitlines()
    assert table[0].split() == ["name", "algorithm", "backend", "idea"]
    assert table[2].split() == ["mine", "fa9", "numba", "a", "|", "b"]
    assert json.loads(variants_report(list(registry), registry).render("json")) == {
        "variants": [
            {
                "name": "mine",
                "algorithm": "fa9",
                "backend": "numba",
                "idea": "a | b",
                "origin": "plugin mine.py",
                "operation": "attention",
            }
        ],
        "version": VERSION,
    }
    assert (
        variants_report(list(registry), registry).render("csv").splitlines()[0]
        == "name,algorithm,backend,idea,origin,operation"
    )
    assert "a \\| b" in variants_report(list(registry), registry).render("markdown")
