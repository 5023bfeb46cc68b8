"""The command `report`: what its page says is what the other commands say."""

from __future__ import annotations

import json
import re
import subprocess
from html import unescape
from pathlib import Path

import pytest

from harness.cli import main
from harness.execution.run_settings import RunSettings
from harness.support.version import VERSION

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
SMALL = ["--seq-len", "20", "--head-dim", "8", "--device", "emulator"]


def report(folder: Path, *words: object) -> tuple[int, str]:
    """Exit status and page."""
    path = folder / "page.html"
    status = main(["report", "--output", str(path), *SMALL, *map(str, words)])
    return status, path.read_text()


def section(page: str, anchor: str) -> str:
    return re.search(rf'<section id="{anchor}".*?</section>', page, re.S)[0]


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


@pytest.fixture(scope="module")
def right(tmp_path_factory) -> str:
    status, page = report(tmp_path_factory.mktemp("right"), "--variants", "fa1-cupy,fa2-cupy")
    assert status == 0
    return page


def test_the_ranking_is_that_of_compare(right, capfd):
    assert main(["compare", "--variants", "fa1-cupy,fa2-cupy", *SMALL, "--format", "csv"]) == 0
    ranked = [line.split(",")[1] for line in capfd.readouterr().out.splitlines()[1:]]
    assert re.findall(r'<th scope="row"><a href="#source-([\w-]+)">', section(right, "ranking")) == ranked


def test_lines_are_those_of_traffic(right, capfd):
    assert main(["traffic", "fa2-cupy", "--lines", *SMALL, "--format", "json"]) == 0
    lines = json.loads(capfd.readouterr().out)["lines"]
    asked = {each["line"] for each in lines if each["file"].endswith("fa2/kernel.cu")}
    details = re.search(r'<details class="sources-of" id="source-fa2-cupy".*?</details>', right, re.S)[0]
    shown = re.findall(r'class="number line">(\d+)</td><td class="number[^"]*">[\d.]+</td>', details)
    assert {*map(int, shown)} == asked and asked


def test_a_section_with_nothing_to_show_is_left_out(right):
    assert re.findall(r'<section id="(\w+)"', right)[:2] == ["result", "ranking"]
    assert 'id="times"' not in right and 'id="campaigns"' not in right


def test_findings_stand_beside_their_line(tmp_path):
    status, page = report(
        tmp_path, "--plugin", PLUGINS / "hidden_mistakes.py", "--variants", "warps-in-order", "--sanitize"
    )
    assert status == 1
    rows = re.findall(r"<tr[^>]*>.*?</tr>", section(page, "sources"), re.S)
    at = next(n for n, row in enumerate(rows) if 'class="finding"' in row and "race" in row)
    assert "s[t]" in words(rows[at - 1]) or "s[t - 32]" in words(rows[at - 1])
    assert "findings" in words(section(page, "ranking"))


def test_what_goes_wrong_in_a_variant_is_a_row_and_the_page_is_whole(tmp_path):
    plugin = PLUGINS / "broken_kernels.py"
    chosen = "bad-*,one-thread-per-row,two-pass-cupy"
    right = PLUGINS / "one_thread_per_row.py"
    status, page = report(tmp_path, "--plugin", plugin, "--plugin", right, "--variants", chosen, "--step-limit", 10_000)
    assert status == 1
    ranking = words(section(page, "ranking"))
    for verdict in ("pass", "fail", "error"):
        assert f" {verdict} " in ranking
    assert page.rstrip().endswith("</html>") and 'id="sources"' in page


def test_a_wrong_answer_is_red_and_its_place_is_named(tmp_path):
    status, page = report(tmp_path, "--plugin", PLUGINS / "hidden_mistakes.py", "--variants", "short-output")
    assert status == 1
    data = json.loads(re.search(r'id="error-maps-data">(.*?)</script>', page, re.S)[1])
    cells = [cell for panel in data["short-output"][0]["panels"] for row in panel["cells"] for cell in row]
    assert any(isinstance(cell, str) or cell > 1 for cell in cells)
    assert 'class="number bad"' in section(page, "errors")


def test_levels_behind_the_caches_are_there_where_asked_for(tmp_path, right):
    assert "<dt>L2</dt>" not in right
    _, page = report(tmp_path, "--variants", "fa2-cupy", "--caches", "--gpu", "a100")
    assert "<dt>L2</dt>" in page and "<dt>DRAM</dt>" in page and "Roofline of A100" in page


def test_a_campaigns_failure_has_case_pattern_and_replay_line(tmp_path):
    plugin = PLUGINS / "broken_kernels.py"
    status, page = report(tmp_path, "--plugin", plugin, "--variants", "bad-answer", "--fuzz", 3)
    campaigns = words(section(page, "campaigns"))
    assert status == 1 and "smallest case" in campaigns and "pattern" in campaigns
    assert f"--plugin {plugin} --device emulator --replay" in campaigns and "head_dim" in campaigns


@pytest.mark.parametrize(
    ("said", "mend"),
    [
        ([], "--output"),
        (["--output", "/nowhere/at/all.html"], "/nowhere/at"),
        (["--output", "x.html", "--fuzz", "0"], "--fuzz"),
        (["--output", "x.html", "--gpu", "abacus"], "abacus"),
        (["--output", "x.html", "--variants", "fa2-cupi"], "fa2-cupy"),
    ],
)
def test_a_wrong_call_is_one_line_and_leaves_nothing(said, mend, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *said]) == 2
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and mend in lines[0]
    assert not [*tmp_path.iterdir()]


def test_nobody_who_takes_the_problem_is_no_pass(tmp_path, capfd):
    status, page = report(tmp_path, "--variants", "fa3-cupy")
    assert status == 2 and "unsupported" in words(section(page, "ranking"))
    assert "nothing ran" in capfd.readouterr().err


def test_the_page_is_one_file_that_asks_for_nothing(right):
    body = re.sub(r"<(style|script)\b.*?</\1>", "", right, flags=re.S)
    assert not re.search(r"""\s(src|srcset|style|on\w+)=""", re.sub(r">[^<]*<", "><", body))
    assert not re.search(r'href="(?!#)', body)
    assert len(right) < 5_000_000


def test_another_operation_has_a_page_too(tmp_path, capsys):
    path = tmp_path / "page.html"
    words_ = ["report", "--operation", "softmax", "--rows", "8", "--columns", "64", "--device", "emulator"]
    assert main([*words_, "--output", str(path)]) == 0
    assert capsys.readouterr().out == f"Wrote {path}. Open it in a browser.\n"
    page = path.read_text()
    assert "Each picture is all of Y" in page
    assert "<title>softmax" in page and 'id="error-maps-data"' in page


def test_a_campaign_that_fails_is_a_failure_of_the_report(tmp_path, monkeypatch):
    from harness.studies.report import command as module

    def failing(variant, asked):
        return module.error_result(variant, asked, "it did not come to an end")

    monkeypatch.setattr(module, "campaign_or_error", failing)
    status, page = report(tmp_path, "--variants", "fa2-cupy", "--fuzz", 1)
    assert status == 1 and "it did not come to an end" in words(section(page, "campaigns"))
    assert " pass " in words(section(page, "ranking"))


def test_a_campaign_that_dies_is_an_error_of_its_own(monkeypatch):
    from harness.studies.report import command as module
    from harness.studies.report.command import ReportRequest

    asked = ReportRequest(fuzz=1, settings=RunSettings(device="emulator"))
    monkeypatch.setattr(
        module.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 2, "", "harness: no variant 'x'\n")
    )
    result = module.campaign_or_error("x", asked)
    assert result["verdict"] == "error" and "no variant 'x'" in result["reason"]


def test_the_page_names_its_version_date_and_device(right):
    footer = words(right[right.index("<footer>") : right.index("</footer>")])
    assert re.search(rf"Written on \d{{4}}-\d\d-\d\d \d\d:\d\d UTC by attention-sandbox {re.escape(VERSION)}\.", footer)
    assert "Device: " in footer
