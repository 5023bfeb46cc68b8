"""Sections made of results that were put together by hand."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html import unescape

import pytest
from counted_by_hand import PROBLEM, SHARED, make

from harness.execution.judging.error_map import ErrorMap, ErrorPanel
from harness.execution.outcome import Comparison, Row
from harness.execution.protocol import Device
from harness.execution.traffic.line_costs import line_costs
from harness.execution.traffic.traffic_account import CacheAccount, Level
from harness.execution.variant_report import LaunchShape, VariantReport
from harness.model.finding import Finding
from harness.operations.attention.problem import Problem
from harness.studies.report.page_sections import ReportData, sections_of
from harness.support.gpu_data_sheets import GPUS
from harness.support.source_text import find_source
from harness.text.page.algorithm_comparison import step_costs
from harness.text.page.bytes_by_level import bytes_section
from harness.text.page.error_maps import errors_section
from harness.text.page.kernel_sources import sources_section
from harness.text.page.ranking_table import ranking_section
from harness.text.page.result import result_section, result_sentence
from harness.text.page.roofline import roofline_points, roofline_section

EMULATOR, GPU = Device("emulator", "by hand", "sm_90"), Device("gpu", "NVIDIA H200", "sm_90")


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def row(name: str, **changes) -> Row:
    return replace(Row(variant=name, algorithm="a", backend="cupy", verdict="pass", compulsory_bytes=384), **changes)


def comparison(*rows: Row, device: Device = EMULATOR, problem: Problem = PROBLEM) -> Comparison:
    return Comparison(problem=problem, regime="normal", seed=0, device=device, counted_on=EMULATOR, rows=rows)


def seen(name: str, **changes) -> VariantReport:
    account = make(shared=(SHARED,))
    report = VariantReport(variant=name, backend="cupy", account=account, lines=line_costs(account))
    return replace(report, **changes)


def test_the_roof_is_that_of_what_the_kernel_multiplies_with():
    problem = replace(PROBLEM, dtype="float16")
    table = comparison(row("mma"), row("plain"), row("twin"), row("unseen"), problem=problem)
    reports = {
        "mma": seen("mma", uses_tensor_cores=True),
        "plain": seen("plain", uses_tensor_cores=False),
        "twin": seen("twin", uses_tensor_cores=False),
        "unseen": seen("unseen", account=None),
    }
    gpu = GPUS["h200"]
    points = roofline_points(table, reports, gpu)
    assert [(p.names, p.peak_flops) for p in sorted(points, key=lambda p: p.names)] == [
        (("mma",), gpu.tensor_flops["float16"]),
        (("plain", "twin"), gpu.float32_flops),
    ]
    assert {p.intensity for p in points} == {problem.flops / make().moved_bytes}
    html = roofline_section(table, reports, gpu).html
    assert html.count("<circle") == 2 and "nothing here is measured" in html


def test_a_time_puts_a_ring_below_the_roof():
    table = comparison(row("timed", time_ms=0.5), device=GPU)
    (point,) = roofline_points(table, {"timed": seen("timed")}, GPUS["h200"])
    assert point.measured_flops == 2000 * PROBLEM.flops
    html = roofline_section(table, {"timed": seen("timed")}, GPUS["h200"]).html
    assert 'class="ring"' in html and "nothing here is measured" not in html


def test_the_limit_is_without_caches_unless_all_variants_have_their_traffic_behind_caches():
    table = comparison(row("a"), row("b"))
    dram = Level("DRAM", 3 * PROBLEM.flops, PROBLEM.flops // 2)
    account = make()
    cached = seen(
        "b", account=replace(account, levels=(*account.levels, dram), caches=CacheAccount((), (), PROBLEM.flops // 2))
    )
    mixed = roofline_section(table, {"a": seen("a"), "b": cached}, GPUS["h200"]).html
    assert "limit without caches, TFLOP/s" in words(mixed) and "sectors level" in mixed and "DRAM" not in mixed
    (point,) = roofline_points(comparison(row("b")), {"b": cached}, GPUS["h200"])
    assert point.intensity == 1 / 4
    html = roofline_section(comparison(row("b")), {"b": cached}, GPUS["h200"]).html
    assert "limit TFLOP/s" in words(html) and "FLOP per byte, DRAM level" in html and "Rings" not in html


def test_every_figure_of_the_roofline_is_a_number():
    html = roofline_section(comparison(row("a")), {"a": seen("a")}, GPUS["t4"]).html
    numbers = re.findall(r' (?:x|y|x1|x2|y1|y2|cx|cy)="([^"]*)"', html)
    assert len(numbers) > 20 and all(math.isfinite(float(number)) for number in numbers)


def test_levels_that_nobody_knows_are_a_dash_and_not_nothing():
    account = replace(make(), levels=(*make().levels, Level("L2", None, None)))
    html = bytes_section(comparison(row("a")), {"a": seen("a", account=account)}).html
    assert "<dt>L2</dt>" in html and '<td class="number">-</td>' in html
    assert "were not counted" in bytes_section(comparison(row("a")), {"a": seen("a", account=None)}).html


def test_buffers_add_up_to_every_level_that_is_counted():
    html = bytes_section(comparison(row("a")), {"a": seen("a")}).html
    tables = re.findall(r"<table.*?</table>", html, re.S)
    assert [re.search(r'<caption class="unseen">(.*?)<', text)[1] for text in tables] == [
        "MiB by level",
        "MiB by buffer at the sectors level",
        "MiB by buffer at the requested level",
    ]
    account = make()
    for text, level in zip(tables[1:], ("sectors", "requested")):
        cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", text)
        heads, figures = cells[: len(cells) // 2], cells[len(cells) // 2 :]
        shown = {name: float(figure.partition("<")[0]) for name, figure in zip(heads[1:], figures[1:])}
        assert shown.pop("local", None) == (0.0005 if level == "sectors" else None)
        assert sum(shown.values()) == pytest.approx(account.level(level).total_bytes / 2**20, abs=2e-4)


def test_reasons_and_those_who_refuse_stand_below_the_ranking():
    html = ranking_section(
        comparison(
            row("good", rank=1, note="a remark"),
            row("bad", verdict="fail", reason="wrong & <worse>"),
            row("other", verdict="unsupported", reason="too long"),
            row("another", verdict="unsupported", reason="too long"),
        )
    ).html
    assert "wrong &amp; &lt;worse&gt;" in html and "a remark" in html
    table, notes = html.split("</table>")
    assert "worse" in notes and "worse" not in table  # a last column would be cut off on a narrow screen
    assert "other" not in table and "other, another: unsupported: too long" in notes
    only = ranking_section(comparison(row("other", verdict="unsupported", reason="too long"))).html
    assert "other" in only.split("</table>")[0]


def test_sectors_per_request_are_shown_by_buffer():
    account = make()
    (site,) = [each for each in account.lines if each.buffer == "O"]
    both = replace(account, lines=(site, replace(site, buffer="local", requests=1, sectors=13, ideal_sectors=4)))
    launches = (LaunchShape("one", (1,), (32,), 0, None, None),)
    report = seen("a", account=both, lines=line_costs(both), launches=launches)
    text = words(sources_section(comparison(row("a")), {"a": report}).html)
    assert "O 4.00 (4.00) local 13.00 (4.00)" in text


def test_a_section_that_only_says_what_is_missing_is_left_out_of_the_report():
    empty = ReportData(comparison(row("a")), {"a": seen("a", account=None, lines=())}, GPUS["h200"])
    assert [each.anchor for each in sections_of(empty)] == ["result", "ranking", "sources"]
    full = replace(empty, reports={"a": seen("a")})
    assert "bytes" in [each.anchor for each in sections_of(full)]


def test_lines_without_a_text_still_have_their_figures():
    launches = (LaunchShape("one", (2, 3), (32,), 0, None, None),)
    html = sources_section(comparison(row("a")), {"a": seen("a", launches=launches)}).html
    assert "2 x 3 = 6 blocks" in words(html) and "a.cu" in html
    assert re.search(r'>3</td><td class="number warm-7">0\.0003</td><td class="number bad-\d">3\.33 ', html)
    assert "O store" in html and "S atomic" in html and "shared" in html


def test_pictures_that_are_left_out_are_said_to_be():
    panels = (ErrorPanel("batch 0, head 7", ((0.5,),)),)
    errors = (ErrorMap("O", ("row", "column"), (2, 2), (1, 1), panels, 9, 0.5, 0.1, None),)
    section = errors_section(comparison(row("a")), {"a": seen("a", errors=errors)})
    assert "Pictures shown for each variant: 1 of 10, those with the largest errors." in section.html
    assert section.data["error-maps"]["a"][0]["panels"] == [{"place": "batch 0, head 7", "cells": [[0.5]]}]


def test_an_optional_output_is_in_the_table_of_errors_but_has_no_picture():
    panels = (ErrorPanel("batch 0", ((0.5,),)),)
    O, lse = (ErrorMap(name, ("row", "column"), (2, 2), (1, 1), panels, 0, 0.5, 0.1, None) for name in ("O", "lse"))
    section = errors_section(comparison(row("a")), {"a": seen("a", errors=(O, lse))})
    assert "a lse 0.5" in words(section.html)
    assert [each["output"] for each in section.data["error-maps"]["a"]] == ["O"]


def test_the_users_own_variant_is_opened_and_its_costliest_line_named():
    launches = (LaunchShape("one", (1,), (32,), 0, None, None),)
    reports = {name: seen(name, launches=launches) for name in ("best", "own")}
    table = comparison(row("best"), row("own"))
    for own, opened in (((), "best"), (("own",), "own"), (("unseen",), "best")):
        html = sources_section(table, reports, own).html
        assert re.findall(r'<details class="sources-of" id="source-(\w+)" open>', html) == [opened]
    most = max(reports["own"].lines, key=lambda cost: cost.moved_bytes)
    assert f"Costliest line: a.cu:{most.line} , " in words(html), words(html)
    assert "Costliest line" not in words(sources_section(table, {"own": seen("own", lines=())}).html)


def test_bars_are_drawn_at_full_length_if_short_ones_would_vanish():
    account = make()
    bigger = replace(
        account, buffers=tuple(replace(b, read=replace(b.read, sectors=100 * b.read.sectors)) for b in account.buffers)
    )
    for other, is_full in ((account, False), (bigger, True)):
        table = comparison(row("a"), row("b"))
        html = result_section(table, {"a": seen("a"), "b": seen("b", account=other)}).html
        lengths = [float(each) for each in re.findall(r'data-length="([^"]*)"', html)]
        boxes = [float(each) for each in re.findall(r'viewBox="0 0 ([^ ]*) 1" data-length', html)]
        assert boxes == (lengths if is_full else [100, 100])
        assert ("each bar is 100 %" in html) == is_full


def test_names_in_backticks_are_code():
    html = ranking_section(comparison(row("a", note="declare `numerics` <here>"))).html
    assert "declare <code>numerics</code> &lt;here&gt;" in html


def test_a_finding_without_a_place_is_said_too():
    found = (Finding(kind="output not written", message="3 of <O>", count=3),)
    html = sources_section(comparison(row("a", verdict="fail", reason="r", findings=found)), {"a": seen("a")}).html
    assert "output not written: 3 of &lt;O&gt;" in html and "1 finding<" in html


def test_a_kernel_whose_lines_nobody_counted_is_shown_as_it_was_written():
    launches = (LaunchShape("one", (1,), (32,), 0, None, None),)
    report = VariantReport(variant="a", backend="cupy", launches=launches, texts=(("one", "int x = 1 < 2;"),))
    html = sources_section(comparison(row("a", verdict="error", reason="it fell")), {"a": report}).html
    assert "int x = 1 &lt; 2;" in html and "lines not counted" in html and "error: it fell" in html


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where sources are looked for, by names that other tests have, too."""
    monkeypatch.chdir(tmp_path)
    find_source.cache_clear()
    yield tmp_path
    find_source.cache_clear()


def test_a_long_file_is_cut_to_what_costs_something(folder):
    (folder / "a.cu").write_text("void one() {\n" + "x;\n" * 2000)
    launches = (LaunchShape("one", (1,), (32,), 0, None, None),)
    html = sources_section(comparison(row("a")), {"a": seen("a", launches=launches)}).html
    assert "cost nothing" in html and html.count("<tr") < 60


def test_steps_of_an_algorithm_and_what_is_outside_are_all_that_there_is(folder):
    text = ["void f() {", "    g();", "    load(3);", "}", "    // Line 1: load.", "    f();", "    // Line 2: store."]
    (folder / "a.cu").write_text("\n".join([*text, "z;"]))
    steps = step_costs(seen("a"))
    found = {step.step.label if step.step else None: [(c.file, c.line) for c in step.costs] for step in steps}
    assert found == {
        "1": [("a.cu", 3), ("a.cu", 5), ("a.cu", 6)],  # the first one in a function that nobody else calls
        "2": [],
        None: [("a.cu", 9), ("b.cu", 1), ("b.cu", 2)],
    }
    assert sum(step.sector_bytes for step in steps) == make().sector_bytes


def test_the_page_opens_with_who_passes_and_who_moves_the_fewest_bytes():
    two = [row("a", total_bytes=768), row("b", total_bytes=1024)]
    begin = "a moves the fewest bytes, 0.0007 MiB, 2.00 times the compulsory bytes. That is 25 % less than b."
    assert result_sentence(comparison(*two)) == f"Both variants pass; {begin}"
    wrong = [row("c", verdict="fail", total_bytes=384), row("d", verdict="unsupported")]
    assert result_sentence(comparison(*two, *wrong)) == f"2 of 3 variants pass (all but c); {begin}"
    tie = result_sentence(comparison(two[0], row("e", total_bytes=768)))
    assert "a and e move the same number of bytes" in tie
    assert result_sentence(comparison(*wrong)) == "c does not pass."
    assert result_sentence(comparison(wrong[1])) == "No variant supports this problem."


def test_bars_by_buffer_fill_the_width_of_the_largest_variant():
    html = result_section(comparison(row("a"), row("b", verdict="fail")), {"a": seen("a"), "b": seen("b")}).html
    bar = re.findall(r"<dd>.*?</dd>", html, re.S)
    assert len(bar) == 2 and '<span class="bad">fail</span>' in html
    assert sum(float(width) for width in re.findall(r' width="([^"]*)"', bar[0])) == pytest.approx(100)
    assert "<figure" not in result_section(comparison(row("a")), {}).html


def test_the_reason_of_a_failing_variant_stands_at_the_top_in_full():
    html = result_section(comparison(row("a"), row("c", verdict="fail", reason="O[3] is <wrong>")), {}).html
    assert "c fail : O[3] is <wrong>" in words(html) and "&lt;wrong&gt;" in html
    assert "<ul" not in result_section(comparison(row("a")), {}).html
