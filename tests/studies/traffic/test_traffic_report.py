from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from pathlib import Path

import pytest

from harness.execution.protocol import Device
from harness.execution.traffic.counts import Count, SharedTraffic, SiteTraffic
from harness.execution.traffic.traffic_account import (
    CacheAccount,
    CachePart,
    Level,
    Part,
    TrafficAccount,
)
from harness.operations.attention.needed_bytes import io_bound
from harness.operations.attention.problem import Problem
from harness.studies.traffic.report import TrafficReport, traffic_report
from harness.text.tables import FORMATS

pytestmark = pytest.mark.compiles(False)

MIB = 2**20
PROBLEM = Problem(heads=8, q_len=1024, kv_len=1024)  # 2 MiB each of Q, K, V, O
LOADED = Count(requests=8192, requested_bytes=MIB, sectors=65536, ideal_sectors=32768)
STORED = Count(requests=8192, requested_bytes=MIB, sectors=32768, ideal_sectors=32768)
NOTHING = Count()


def line(file: str, number: int, buffer: str, kind: str, count: Count) -> SiteTraffic:
    return SiteTraffic(buffer, kind, file, number, **dataclasses.asdict(count))


def make(source: Path | None = None, **fields: object) -> TrafficAccount:
    file = "" if source is None else str(source)
    values = {
        "variant": "mine",
        "problem": PROBLEM,
        "regime": "normal",
        "seed": 7,
        "device": Device("emulator", "32 lanes on a CPU", "sm_90"),
        "levels": (
            Level("compulsory", 6 * MIB, 2 * MIB),
            Level("claimed", 2 * MIB, MIB),
            Level("requested", MIB, MIB),
            Level("sectors", 2 * MIB, MIB),
        ),
        "claim_holds": True,
        "buffers": (Part("Q", LOADED, LOADED, NOTHING), Part("O", STORED, NOTHING, STORED)),
        "launches": (Part("kernel", LOADED + STORED, LOADED, STORED),),
        "local": Part("local", NOTHING, NOTHING, NOTHING),
        "lines": (line(file, 2, "Q", "load", LOADED), line(file, 3, "O", "store", STORED)),
        "shared": (SharedTraffic("store", file, 2, 1024, 131072, 32768, 1024),),
    }
    return TrafficAccount(**(values | fields))  # type: ignore[arg-type]


def text(account: TrafficAccount, format: str = "table", lines: bool = False) -> str:
    return traffic_report(TrafficReport(account, io_bound(PROBLEM, 64 * 1024), lines)).render(format)


def cells(table: str, first: str) -> list[str]:
    return next(line.split() for line in table.splitlines() if line.split()[:1] == [first])


def test_levels_buffers_and_launches():
    found = text(make())
    assert found.startswith("mine: batch 1, 8 heads, 1024 x 1024, head_dim 64, float32, scale 0.125; inputs normal, ")
    assert cells(found, "compulsory")[:5] == ["compulsory", "6.00", "2.00", "8.00", "1.00"]
    assert cells(found, "sectors")[:5] == ["sectors", "2.00", "1.00", "3.00", "0.38"]
    # requested, read, written, total, share, requests, sectors per request, fewest possible
    assert cells(found, "Q") == ["Q", "1.00", "2.00", "0", "2.00", "66.7", "%", "8,192", "8.00", "4.00"]
    assert cells(found, "O") == ["O", "1.00", "0", "1.00", "1.00", "33.3", "%", "8,192", "4.00", "4.00"]
    assert cells(found, "1") == ["1", "kernel", "2.00", "2.00", "1.00", "3.00", "100.0", "%", "16,384", "6.00", "4.00"]
    assert "Claim: exact." in found
    assert "Local memory: none." in found
    assert "source" not in found
    assert max(map(len, found.splitlines())) <= 120


def test_lines_show_the_users_source(tmp_path: Path):
    source = tmp_path / "kernel.cu"
    source.write_text("void k() {\n    load_it();\n    store_it(" + "x, " * 40 + ");\n}\n")
    found = text(make(source), lines=True)
    assert str(source) in found
    line = next(row for row in found.splitlines() if row.endswith("load_it();"))
    assert line.split()[:-1] == ["2", "Q", "load", "8,192", "1.00", "65,536", "8.00", "4.00", "66.7", "%"]
    cut = next(row for row in found.splitlines() if "store_it" in row)
    assert cut.endswith("...")
    shared = found[found.index("shared memory, ") :]
    assert cells(shared, "2")[:7] == ["2", "store", "1,024", "0.12", "32,768", "32.00", "1.00"]


def test_the_costliest_line_is_the_sum_over_its_buffers():
    """One row each of two buffers on line 2, which together exceed the row of line 3."""
    rows = (
        line("k.cu", 2, "Q", "load", LOADED),
        line("k.cu", 2, "K", "load", LOADED),
        line("k.cu", 3, "O", "store", STORED),
    )
    found = text(make(lines=rows), lines=True)
    told = re.search(
        r"^costliest line: k.cu:2 \(Q ([\d.]+) %, K ([\d.]+) %\) moves ([\d.]+) % of the bytes, counted", found, re.M
    )
    assert told is not None, found
    first, second, both = map(float, told.groups())
    assert first == second and both == pytest.approx(first + second, abs=0.11)
    assert "costliest" not in text(make(lines=rows))


def test_lines_that_move_as_many_bytes_are_both_costliest():
    rows = (line("k.cu", 2, "K", "load", LOADED), line("k.cu", 3, "V", "load", LOADED))
    share = r"([\d.]+) %"
    found = text(make(lines=rows), lines=True)
    assert re.search(
        rf"^costliest lines: k.cu:2 \(K {share}\), k.cu:3 \(V \1 %\); each moves \1 % of the bytes, ", found, re.M
    )


def test_spills_are_told_from_local_memory_in_ptx():
    def notes(account: TrafficAccount, spilled_bytes: int) -> str:
        report = TrafficReport(account, None, False, spilled_bytes=spilled_bytes)
        return " ".join(traffic_report(report).render("table").split())

    assert "Local memory: none." in notes(make(), 0)
    assert "Local memory: none in PTX; ptxas spills 248 bytes per thread, which are not counted." in notes(make(), 248)
    local = make(local=Part("local", STORED, NOTHING, STORED))
    assert "In addition, ptxas spills 8 bytes per thread" in notes(local, 8)
    assert "spills" not in notes(local, 0)


def test_a_line_that_nobody_knows_is_not_made_up():
    found = text(make(), lines=True)
    assert "no source line known" in found
    assert cells(found, "2")[-1] == "-"


def test_a_claim_that_does_not_hold_says_both_numbers():
    found = " ".join(text(make(claim_holds=False)).split())
    assert "Claim: wrong. It states 2,097,152 bytes read and 1,048,576 written; counted: 2,097,152 and" in found
    assert "Claim" not in text(make(claim_holds=None))


def test_local_memory_is_on_its_own(tmp_path: Path):
    local = line("", 2, "local", "store", STORED)
    found = text(make(local=Part("local", STORED, NOTHING, STORED), lines=(local,)), lines=True)
    assert (
        "Local memory: 0 MiB read, 1.00 MiB written in 8,192 requests, by arrays that the compiler could not" in found
    )
    assert cells(found, "local")[1:6] == ["1.00", "0", "1.00", "1.00", "25.0"]
    assert cells(found, "2")[8] == "25.0"  # of 3 MiB of buffers and 1 MiB of local memory


def test_the_bound_says_what_it_is():
    found = " ".join(text(make()).split())
    assert "arXiv 2402.07443" in found
    assert "64.0 KiB of registers and shared memory, so M = 16,384" in found
    assert "indicates an order of magnitude, not an exact limit" in found
    assert "compulsory bytes are the bound" not in found
    without = traffic_report(TrafficReport(make(), None, False)).render("table")
    assert "M is not known here" in " ".join(without.split())
    small = dataclasses.replace(PROBLEM, q_len=64, kv_len=64)
    bound = TrafficReport(make(), io_bound(small, 64 * 1024), False)
    assert "compulsory bytes are the bound" in traffic_report(bound).render("table").replace("\n", " ")


def test_json_and_csv_have_bytes():
    found = json.loads(text(make(), "json"))
    assert found["problem"]["q_len"] == 1024
    assert [level["name"] for level in found["levels"]] == ["compulsory", "claimed", "requested", "sectors"]
    assert found["levels"][3]["total_bytes"] == 3 * MIB
    assert found["buffers"][0]["read_bytes"] == 2 * MIB
    assert found["buffers"][0]["ideal_sectors"] == 32768
    assert found["claim_holds"] is True
    assert "lines" not in found
    found = json.loads(text(make(), "json", lines=True))
    assert (found["lines"][0]["line"], found["lines"][0]["source"]) == (2, None)
    assert found["shared"][0]["wavefronts"] == 32768
    rows = list(csv.DictReader(io.StringIO(text(make(), "csv", lines=True))))
    assert [row["table"] for row in rows] == [
        *["level"] * 4, "buffer", "buffer", "launch", "local", "line", "line", "shared",
    ]  # fmt: skip
    assert rows[4]["read_bytes"] == str(2 * MIB)
    assert rows[0]["requests"] == ""


@pytest.mark.parametrize("format", FORMATS)
def test_a_kernel_that_touches_nothing_is_no_crash(format: str):
    empty = make(
        buffers=(), launches=(), lines=(), shared=(), levels=(Level("sectors", 0, 0),), claim_holds=None
    )  # fmt: skip
    assert text(empty, format, lines=True).endswith("\n")


def test_markdown_has_tables_only():
    found = text(make(), "markdown", lines=True)
    assert "| level" in found
    assert "**no source line known**" in found


def cache_part(name: str, *sizes: int) -> CachePart:
    return CachePart(name, Level("L2", *sizes[:2]), Level("DRAM", *sizes[2:]))


CACHES = CacheAccount(
    (cache_part("Q", 2 * MIB, 0, MIB, 0), cache_part("O", 0, MIB, 0, MIB // 4), cache_part("code", 0, 0, 4096, 0)),
    (cache_part("first", 2 * MIB, 0, MIB + 2048, 0), cache_part("second", 0, MIB, 2048, MIB // 4)),
    3 * MIB // 4,
)


def test_what_the_caches_leave_is_a_table_by_buffer_and_one_by_launch():
    found = text(make(caches=CACHES))
    titles = [line for line in found.splitlines() if "DRAM" in line and "L2" in line][:2]
    assert [title.split()[0] for title in titles] == ["buffer", "launch"]
    rows = [line.split() for line in found.splitlines()]
    assert ["Q", "2.0000", "0", "1.0000", "0"] in rows
    assert ["O", "0", "1.0000", "0", "0.2500"] in rows
    assert ["2", "second", "0", "1.0000", "0.0020", "0.2500"] in rows
    # One launch needs no table of launches.
    assert text(make(caches=dataclasses.replace(CACHES, launches=CACHES.launches[:1]))).count("written MiB") == 2


@pytest.mark.parametrize(
    ("flushed", "words"),
    [(True, "begins with empty caches (--cache-control all)"), (False, "stays warm from launch to")],
)
def test_the_note_says_whose_caches_and_how_they_began(flushed: bool, words: str):
    report = TrafficReport(make(caches=CACHES), None, False, gpu="A100 SXM", flushed=flushed)
    note = " ".join(traffic_report(report).render("table").split())
    assert "modelled after the caches of the A100 SXM" in note
    assert words in note
    assert "At the end, 0.75 MiB of the written data are still in L2" in note


def test_without_ptxas_the_levels_behind_the_caches_are_not_known():
    assert "L2 and DRAM are unknown" in text(make())
    assert json.loads(text(make(), "json"))["caches"] is None


def test_programs_get_the_same_in_bytes():
    report = TrafficReport(make(caches=CACHES), None, False, gpu="H200 SXM", flushed=True)
    found = json.loads(traffic_report(report).render("json"))["caches"]
    assert (found["gpu"], found["flushed"], found["dirty_bytes"]) == ("H200 SXM", True, 3 * MIB // 4)
    assert found["buffers"][1] == {
        "name": "O", "l2_read_bytes": 0, "l2_write_bytes": MIB, "dram_read_bytes": 0, "dram_write_bytes": MIB // 4,
    }  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(traffic_report(report).render("csv"))))
    launches = [row for row in rows if row["table"] == "caches: launches"]
    assert [(row["name"], row["dram_read_bytes"]) for row in launches] == [
        ("first", str(MIB + 2048)), ("second", "2048"),
    ]  # fmt: skip
