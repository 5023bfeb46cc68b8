from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest
from numpy_executor import NumpyExecutor, numpy_variant

from harness.execution.protocol import Device
from harness.execution.run_settings import RunSettings
from harness.model.operation import operation_named
from harness.model.plan import Buffer, Plan
from harness.model.traffic import Traffic
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.options.sweep import Sweep, parse_sweep
from harness.studies.traffic.sweep_point import SweepPoint
from harness.studies.traffic.sweep_report import sweep_report, what_is_fixed
from harness.studies.traffic.sweep_run import LARGEST_COUNTED_FLOPS, run_sweep
from harness.support.errors import UsageError
from harness.text.tables import FORMATS

pytestmark = pytest.mark.compiles(False)

DEVICE = Device("emulator", "by hand", "sm_90")
MIB = 2**20


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("q_len=512..4096", (512, 1024, 2048, 4096)),
        ("q_len=100..500", (100, 200, 400)),
        ("kv-len = 7", (7,)),
        ("seq_len=5..5", (5,)),
        ("head_dim=64,32,128", (64, 32, 128)),
        ("dtype=float32,float16", ("float32", "float16")),
        ("causal=true,false", (True, False)),
        ("scale=0.5,1e-3", (0.5, 0.001)),
    ],
)
def test_sweeps(text: str, values: tuple[object, ...]):
    assert parse_sweep(text, operation_named("attention")).values == values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("q_len", "FIELD=a..b"),
        ("qlen=1..2", "no field 'qlen'; choose one of seq_len, batch"),
        ("q_len=", "no values"),
        ("q_len=4..2", "empty"),
        ("q_len=0..8", "at least 1"),
        ("q_len=-8..8", "at least 1"),
        ("q_len=a..8", "whole numbers, not 'a'"),
        ("q_len=1..", "whole numbers, not ''"),
        ("q_len=1.5", "whole numbers, not '1.5'"),
        ("q_len=8,8", "twice"),
        ("q_len=1.." + "9" * 40, "whole numbers, not '9999"),
        ("q_len=" + ",".join(map(str, range(1, 100))), "99 values; 64 are the most"),
        ("dtype=float16..float32", "no range"),
        ("causal=maybe", "true or false"),
        ("scale=big", "numbers, not 'big'"),
    ],
)
def test_what_is_no_sweep_is_one_line(text: str, words: str):
    with pytest.raises(UsageError) as caught:
        parse_sweep(text, operation_named("attention"))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_would_take_for_ever_is_refused():
    operation_named("attention").require_sweepable(Problem(q_len=2**20, kv_len=2**20, heads=1))
    for problem in (Problem(q_len=2**21), Problem(kv_len=2**21), Problem(heads=64, q_len=2**17)):
        with pytest.raises(UsageError, match="--sweep reaches"):
            operation_named("attention").require_sweepable(problem)


def run(*variants: Variant, field: str = "q_len", **options: object) -> dict[tuple[str, object], SweepPoint]:
    sweep = Sweep(field, (4, 8))
    problems = [Problem(heads=1, q_len=value, kv_len=4, head_dim=4) for value in sweep.values]
    points = run_sweep(variants, sweep, problems, NumpyExecutor(), RunSettings(**options))  # type: ignore[arg-type]
    return {(point.variant, point.value): point for point in points}


def test_points_are_counted_and_claims_are_held_against_them():
    right = numpy_variant("right", claim=Traffic(3200, 1600))
    found = run(right, numpy_variant("wrong", claim=Traffic(1600, 3200)), numpy_variant("silent"))
    assert [*found] == [(name, value) for value in (4, 8) for name in ("right", "wrong", "silent")]
    point = found["right", 8]
    assert (point.source, point.read_bytes, point.write_bytes, point.claim_holds) == ("counted", 3200, 1600, True)
    assert point.requested_bytes == 2  # what the stand-in says; local memory is left out
    assert point.flops == 4 * 8 * 4 * 4
    assert point.intensity == pytest.approx(512 / 4800)
    assert found["wrong", 4].claim_holds is False
    assert found["silent", 4].claim_holds is None


def test_never_counting_is_claiming():
    found = run(numpy_variant("right", claim=Traffic(5, 6)), numpy_variant("silent"), count="never")
    assert (found["right", 4].source, found["right", 4].total_bytes) == ("claimed", 11)
    assert found["right", 4].requested_bytes is None
    assert found["silent", 4].total_bytes is None
    assert "has no claim" in (found["silent", 4].reason or "")
    assert not found["silent", 4].failed


def test_what_is_too_large_is_claimed_unless_asked_for():
    large = Problem(heads=1, q_len=2**14, kv_len=2**14, head_dim=64)
    assert 4 * 2**28 * 64 > LARGEST_COUNTED_FLOPS
    variant = numpy_variant("right", claim=Traffic(5, 6))
    executor = NumpyExecutor()
    (point,) = run_sweep([variant], Sweep("q_len", (2**14,)), [large], executor)
    assert (point.source, executor.runs) == ("claimed", [])

    def plan(problem: Problem) -> Plan:
        return Plan((), (Buffer("S", (2**28,), "float32"),))

    hungry = Variant(name="hungry", plan=plan, claim=lambda problem: Traffic(1, 2))
    (point,) = run_sweep([hungry], Sweep("q_len", (4,)), [Problem(q_len=4, kv_len=4)], executor)
    assert point.source == "claimed"


def test_what_goes_wrong_is_a_point_and_the_others_still_come():
    picky = Variant(name="picky", plan=lambda p: Plan(()), supports=lambda p: "too long" if p.q_len > 4 else None)
    broken = Variant(name="broken", plan=lambda problem: 1 // 0)  # type: ignore[arg-type,return-value]
    found = run(picky, broken, numpy_variant("right"))
    assert (found["picky", 8].reason, found["picky", 8].failed) == ("too long", False)
    assert found["broken", 4].failed
    assert "ZeroDivisionError" in (found["broken", 4].reason or "")
    assert found["right", 8].source == "counted"


def points() -> tuple[Sweep, list[SweepPoint]]:
    sweep = Sweep("q_len", (256, 512))
    made = []
    for value in sweep.values:
        problem = Problem(q_len=value, kv_len=512)
        fields = {"algorithm": "fa", "backend": "cupy", "value": value, "problem": problem}
        source = "counted" if value == 256 else "claimed"
        made.append(SweepPoint(variant="fa-cupy", source=source, read_bytes=value * MIB, write_bytes=MIB, **fields))
        made.append(SweepPoint(variant="no", source=None, reason="too odd", **fields))
    return sweep, made


def test_the_table_marks_what_is_claimed():
    text = sweep_report(*points(), DEVICE).render("table")
    lines = text.splitlines()
    assert lines[0].endswith("by q_len; batch 1, heads 2, kv_len 512, head_dim 64, float32")
    assert [line.split() for line in lines if line.split()[:1] in (["256"], ["512"])] == [
        ["256", "0.75", "257.00", "-"],
        ["512", "1.00", "513.00*", "-"],
    ]
    assert "* taken from the variant's claim" in text
    assert "- no at 256, 512: too odd" in text


def test_the_unit_says_whether_bytes_were_counted_or_computed():
    sweep, found = points()
    assert "2^20 bytes, counted in the 32-byte" in " ".join(sweep_report(sweep, found, DEVICE).notes())
    claims = [replace(point, source=point.source and "claimed") for point in found]
    assert "2^20 bytes, computed for the 32-byte" in " ".join(sweep_report(sweep, claims, DEVICE).notes())


def test_programs_get_bytes():
    rows = list(csv.DictReader(io.StringIO(sweep_report(*points(), DEVICE).render("csv"))))
    assert [(row["q_len"], row["variant"], row["source"], row["total_bytes"]) for row in rows] == [
        ("256", "fa-cupy", "counted", str(257 * MIB)),
        ("256", "no", "", ""),
        ("512", "fa-cupy", "claimed", str(513 * MIB)),
        ("512", "no", "", ""),
    ]
    assert rows[0]["kv_len"] == "512"
    found = json.loads(sweep_report(*points(), DEVICE).render("json"))
    assert found["sweep"] == {"field": "q_len", "values": [256, 512]}
    assert found["points"][1]["reason"] == "too odd"
    assert found["points"][0]["problem"]["q_len"] == 256


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_ends_in_a_line_break(format: str):
    assert sweep_report(*points(), DEVICE).render(format).endswith("\n")


def test_what_is_fixed_is_what_no_value_changes():
    swept = [Problem(heads=4, kv_heads=2, q_len=n, kv_len=n, mask="causal") for n in (1, 2)]
    fixed = what_is_fixed(Sweep("seq_len", (1, 2)), swept)
    assert fixed == "batch 1, heads 4, kv_heads 2, head_dim 64, float32, causal"
    swept = [Problem(q_len=7, kv_len=n) for n in (1, 2)]
    assert what_is_fixed(Sweep("seq_len", (1, 2)), swept) == "batch 1, heads 2, q_len 7, head_dim 64, float32"
