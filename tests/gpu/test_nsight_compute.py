from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.gpu import nsight_compute
from harness.gpu.nsight_compute import (
    BULK_LOADS,
    LEVEL_METRICS,
    TRAFFIC_METRICS,
    Counters,
    Replay,
    parse_csv,
    read_counters,
)
from harness.support.errors import CountersUnavailable

pytestmark = pytest.mark.compiles(False)

# As ncu 2025.3 writes it with --csv --print-units base; columns that nobody reads are left out.
LOG = """==PROF== Connected to process 71 (/usr/bin/python3.12)
==PROF== Profiling "fa2" - 0: 0%....50%....100% - 4 passes
"ID","Process ID","Kernel Name","Context","Metric Name","Metric Unit","Metric Value"
"0","71","fa2","1","dram__bytes_read.sum","byte","1,234,567"
"0","71","fa2","1","nonsense__thing.sum","","n/a"
"0","71","fa2","1","sm__cycles_active.avg","cycle","57.73"
"10","71","two(Array<float, 4, C>)","1","dram__bytes_read.sum","byte","0"
"9","71","one","1","dram__bytes_read.sum","byte","32"
==PROF== Disconnected from process 71
"""


def test_launches_come_in_order_with_their_numbers():
    first, second, third = parse_csv(LOG)
    assert (first.name, second.name, third.name) == ("fa2", "one", "two(Array<float, 4, C>)")
    assert first.values == {
        "dram__bytes_read.sum": 1234567,
        "nonsense__thing.sum": None,
        "sm__cycles_active.avg": 57.73,
    }
    assert third.values == {"dram__bytes_read.sum": 0}


def test_a_sum_is_known_where_all_its_parts_are():
    counters = Counters("k", {"a": 3, "b": 4, "c": None})
    assert counters.total(("a", "b")) == 7
    assert counters.total(("a", "c")) is None
    assert counters.total(("a", "never heard of")) is None


def test_a_gpu_without_bulk_copies_has_moved_nothing_by_them():
    assert Counters("k", {"a": 3, BULK_LOADS: None}).total(("a", BULK_LOADS)) == 3
    assert Counters("k", {"a": 3, BULK_LOADS: 4}).total(("a", BULK_LOADS)) == 7


def test_every_level_has_both_directions():
    assert [*LEVEL_METRICS] == ["sectors", "L2", "DRAM"]
    assert {name for level in LEVEL_METRICS.values() for name in level.read + level.written} == set(TRAFFIC_METRICS)
    assert len(set(TRAFFIC_METRICS)) == len(TRAFFIC_METRICS)


def ncu(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a shell script in ncu's place. $log is the file that it is to write."""
    path = folder / "ncu"
    path.write_text(f'#!/bin/sh\nwhile [ "$1" != --log-file ]; do shift; done; log=$2; shift 2\n{script}\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_the_program_runs_under_ncu_and_clocks_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "log").write_text(LOG)
    ncu(tmp_path, f'cp {tmp_path}/log "$log"; echo "$PWD $*" >{tmp_path}/asked', monkeypatch)
    found = read_counters(["python", "-m", "program"], ["a", "b"], folder=tmp_path)
    assert [one.name for one in found] == ["fa2", "one", "two(Array<float, 4, C>)"]
    assert (tmp_path / "asked").read_text().split() == [
        str(tmp_path), "--clock-control", "none", "--cache-control", "all", "--replay-mode", "kernel",
        "--target-processes", "all", "--profile-from-start", "off", "--metrics", "a,b", "python", "-m", "program",
    ]  # fmt: skip
    read_counters(["python"], ["a"], replay=Replay.PLAN, folder=tmp_path)
    asked = (tmp_path / "asked").read_text()
    assert "--replay-mode app-range" in asked
    assert "--profile-from-start" not in asked  # ncu refuses it there


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission" >"$log"; exit 1', "ERR_NVGPUCTRPERM"),
        ('echo "==ERROR== ERR_NVGPUCTRPERM - The user"; exit 0', "run as root"),
        (
            'printf "==PROF== hello\\n==ERROR== Failed to initialize: LibraryNotLoaded\\n" >"$log"; exit 1',
            "ncu read no counters: Failed to initialize: LibraryNotLoaded",
        ),
        ('printf "==WARNING== No kernels were profiled.\\n" >"$log"', "No kernels were profiled"),
        ("exit 1", "it says nothing"),
        ("echo something >&2; exit 3", "something"),
    ],
)
def test_why_there_are_no_counters_is_one_line(
    script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ncu(tmp_path, script, monkeypatch)
    with pytest.raises(CountersUnavailable) as caught:
        read_counters(["true"], ["a"])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ncu_that_is_not_there_or_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nsight_compute, "find_ncu", lambda: None)
    with pytest.raises(CountersUnavailable, match=r"ncu \(Nsight Compute\) is not installed"):
        read_counters(["true"], ["a"])
    broken = tmp_path / "ncu"
    broken.write_text("no program")
    monkeypatch.setattr(nsight_compute, "find_ncu", lambda: str(broken))
    with pytest.raises(CountersUnavailable, match="did not start"):
        read_counters(["true"], ["a"])


def test_where_ncu_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ncu(tmp_path, "exit 0", monkeypatch)
    assert nsight_compute.find_ncu() == str(tmp_path / "ncu")
