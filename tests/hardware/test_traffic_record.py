"""The emulator's counts against what GPUs' own counters said (scripts/record_traffic.py made the records)."""

from __future__ import annotations

import functools
import json
import math
from fnmatch import fnmatch
from pathlib import Path

import pytest
from emulators import emulator
from lanes import exhaustive, exhaustive_unless, thorough_unless

from harness.compilers.ptxas import find_ptxas
from harness.emulator.instruments import PLAIN, Instruments
from harness.execution.planning.variant_calls import refusal_of
from harness.execution.protocol import Execution
from harness.gpu.hardware_counters import Run
from harness.gpu.nsight_compute import Counters
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.problem import BaseProblem
from harness.operations.attention.problem import Problem
from harness.studies.show.kernel_listing import list_kernels
from harness.support.memory_units import SECTOR_BYTES
from scripts import record_traffic
from scripts.recording.merged_records import merged
from scripts.recording.plan_hash import plan_hash, recorded_hashes
from scripts.recording.recorded_problem import recorded_problem

RECORD = merged([json.loads(path.read_text()) for path in sorted(Path(__file__).parent.glob("traffic_*.json"))])
LARGEST_EMULATED_FLOPS = 1.4e7
"""Beyond, the variant's claim, which other tests hold against counts, stands in for the emulator."""
BANK_CASES = {0: "*-cupy", 7: "*", 30: "fa2-mma-cupy"}
"""Problems, and variants, on which bank conflicts are counted too, which takes long: all aligned, nothing aligned, and
fragments for tensor cores."""
WIDE = 128
MORE_FOR_ZEROS = 1.2
"""The hardware counts some wavefronts twice of a cp.async that brings zeros only (src-size 0), as in tails of keys."""


REGISTRY = discover().registry


@functools.cache
def stale(index: int, name: str) -> str:
    """Why the record has nothing to say of the plan that this variant makes of this problem; empty where it has."""
    found = recorded_hashes(RECORD, index, name)
    if not found:
        return f"{name} is not recorded yet on problem {index}; run scripts/record_traffic.py on a GPU"
    if plan_hash(REGISTRY.get(name).plan(problem(index)), problem(index)) not in found:
        return (
            f"the kernels or launches of {name} on problem {index} have changed since {RECORD['date']}; "
            "run scripts/record_traffic.py on a GPU"
        )
    return ""


def launches_of(index: int, name: str) -> list[dict[str, int]]:
    """What was measured of each launch. Skips the test where the record is not of this plan."""
    if reason := stale(index, name):
        pytest.skip(reason)
    rows = [r for r in RECORD["launches"] if r["problem"] == index and r["variant"] == name]
    return [dict(zip(RECORD["metrics"], row["values"])) for row in rows]


def problem(index: int) -> BaseProblem:
    return recorded_problem(RECORD["problems"][index])


@functools.cache
def emulated(index: int, name: str, instruments: Instruments = PLAIN) -> Execution:
    variant = REGISTRY.get(name)
    executor = emulator(instruments=instruments)
    return executor.run(problem(index), variant.plan(problem(index)), draw_inputs(problem(index)))


NAMES = {variant.name for variant in REGISTRY}
CASES = sorted({(row["problem"], row["variant"]) for row in RECORD["launches"] if row["variant"] in NAMES})


def is_emulated(case: tuple[int, str]) -> bool:
    """Whether the emulator counts it here; else the claim stands in, which other tests hold against counts."""
    return problem(case[0]).flops <= LARGEST_EMULATED_FLOPS


def is_quick(case: tuple[int, str]) -> bool:
    """Whether it has kernels that other tests of the thorough lane compile, too, and few operations."""
    asked, variant = problem(case[0]), REGISTRY.get(case[1])
    dtype = "float32" if refusal_of(variant, Problem()) is None else "bfloat16"
    return asked.build_key == Problem(head_dim=64, dtype=dtype).build_key and is_emulated(case)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_record_is_of_these_kernels(name: str) -> None:
    """Or skips with what is to be recorded."""
    reasons = [stale(index, name) for index, variant in CASES if variant == name] or [stale(0, name)]
    if any(reasons):
        pytest.skip(next(filter(None, reasons)))


def test_of_each_plan_the_latest_record_counts() -> None:
    plan = {"variant": "a", "hash": "1"}
    launch = {"variant": "a", "launch": 0, "kernel": "k"}
    old = {
        "date": "2026-01-01",
        "metrics": {"loads": "l", "stores": "s"},
        "problems": [{}, {"heads": 3}],
        "plans": [{**plan, "problem": 0}, {**plan, "problem": 1}],
        "launches": [{**launch, "problem": 0, "values": [1, 2]}, {**launch, "problem": 1, "values": [3, 4]}],
    }
    new = {
        "date": "2026-01-02",
        "metrics": {"stores": "s", "loads": "l"},
        "problems": [{"heads": 3}, {"heads": 5}],
        "plans": [{**plan, "problem": 0, "hash": "2"}],
        "launches": [{**launch, "problem": 0, "values": [40, 30]}],
    }
    for records in ([old, new], [new, old]):
        found = merged(records)
        assert (found["date"], found["problems"]) == ("2026-01-02", [{}, {"heads": 3}, {"heads": 5}])
        assert found["plans"] == [{**plan, "problem": 0}, {**plan, "problem": 1, "hash": "2"}]
        assert [(row["problem"], row["values"]) for row in found["launches"]] == [(0, [1, 2]), (1, [30, 40])]


def test_what_was_measured_outlives_a_run_that_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(index, Run("fa2-cupy", problem(index))) for index in (0, 1, 2)]
    asked: list[str] = []

    def measured(some: list[record_traffic.Case], plans: object) -> dict[record_traffic.Case, record_traffic.Measured]:
        asked.extend(case[1].variant for case in some)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return {case: ((Counters("fa2", {}),), ()) for case in some}

    monkeypatch.setattr(record_traffic, "all_runs", lambda: cases)
    monkeypatch.setattr(record_traffic, "environment", lambda: {"gpu": "some", "date": "2026-01-01"})
    monkeypatch.setattr(record_traffic, "ncu_version", lambda: "1")
    monkeypatch.setattr(record_traffic, "AT_ONCE", 1)
    monkeypatch.setattr(record_traffic, "measured", measured)
    records = record_traffic.record([], (0, 1), math.inf)
    # Nothing takes the place of an older record before something is measured.
    assert [len(next(records)["plans"]) for _ in range(2)] == [1, 2]
    with pytest.raises(KeyboardInterrupt):
        next(records)


def test_what_is_not_recorded_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    index, name = CASES[0]
    assert "not recorded yet" in stale.__wrapped__(index, "not-a-variant")
    monkeypatch.setattr(f"{__name__}.plan_hash", lambda plan, problem: "another plan")
    assert "have changed since" in stale.__wrapped__(index, name)


WITH_COUNTERS = ("fa3", "fa3-fp8", "lean", "paged-lean", "unified-max", "bwd-fa3-ordered")
"""Algorithms that give the same bits each time, although blocks count by atomics: tiles that are taken, parts that are
done, rows to compute again; and sums that are added to in turns."""
TAKE_TURNS = ("bwd-fa2-ordered", "bwd-fa3-ordered", "bwd-mma-ordered")


@pytest.mark.parametrize(
    ("index", "name"),
    [
        *(case for case in CASES if not is_emulated(case)),
        *thorough_unless(lambda case: case[1] == "fa2-cupy", filter(is_quick, CASES)),
        *exhaustive(case for case in CASES if is_emulated(case) and not is_quick(case)),
    ],
)
def test_sectors_are_those_of_the_hardware(index: int, name: str) -> None:
    """Exactly: no compiler behind the PTX merges or moves an access of these kernels.

    Atomics, which are read and written here, have counters of their own there: what is missing has to be the same of
    both, and nothing where no kernel has any. A block that waits for its turn reads it more often there.
    """
    measured = launches_of(index, name)
    reads = SECTOR_BYTES * sum(launch["load_sectors"] + (launch["bulk_load_sectors"] or 0) for launch in measured)
    writes = SECTOR_BYTES * sum(launch["store_sectors"] + (launch["bulk_store_sectors"] or 0) for launch in measured)
    variant = REGISTRY.get(name)
    if not is_emulated((index, name)):
        assert variant.claim is not None
        ours = variant.claim(problem(index))
    else:
        ours = emulated(index, name)  # type: ignore[assignment]
    atomics = ours.write_bytes - writes
    least = 0 if variant.deterministic else SECTOR_BYTES
    most = 0 if variant.deterministic and variant.algorithm not in WITH_COUNTERS else ours.write_bytes
    assert least <= atomics <= most
    waiting = reads - (ours.read_bytes - atomics)
    assert waiting >= 0 if variant.algorithm in TAKE_TURNS else waiting == 0


def parts_sectors(index: int, name: str) -> bool:
    """Whether copies of 16 bytes bring the halves of a sector to different sectors of shared memory.

    Where rows, there or here, are an odd number of 16 bytes long. Such copies take more wavefronts of shared memory.
    """
    asked, algorithm = problem(index), REGISTRY.get(name).algorithm
    if algorithm in ("fa2", "bwd-fa2"):  # whose rows there always are, for the sake of banks
        return asked.to_fields()["dtype"] == "float32" and asked.to_fields()["head_dim"] % 4 == 0
    return algorithm.startswith("bwd-mma") and asked.to_fields()["head_dim"] % 16 == 8


def first_of_each_kernel() -> list[tuple[int, str]]:
    """Cases whose kernels no case before them has, as far as problems say what is compiled in.

    Of those that are not emulated either, and so compiled for this alone, the ones with most registers.
    """
    kernels = {(problem(i).build_key, name): (i, name) for i, name in reversed(CASES)}
    return sorted(
        (i, name)
        for i, name in kernels.values()
        if problem(i).flops <= LARGEST_EMULATED_FLOPS or getattr(problem(i), "head_dim", 0) >= WIDE
    )


@pytest.mark.parametrize(
    ("index", "name"), exhaustive_unless(lambda case: case[1] == "fa2-cupy", first_of_each_kernel())
)
def test_local_memory_is_touched_where_ptxas_spills(index: int, name: str) -> None:
    """PTX does not show what `ptxas` spills; `show` prints it, and the hardware agrees."""
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    measured = launches_of(index, name)
    listings = list_kernels(REGISTRY.get(name), problem(index), "sm_90")
    spills = [l.resources is not None and l.resources.spill_store_bytes > 0 for l in listings]
    touched = [m["local_load_sectors"] + m["local_store_sectors"] > 0 for m in measured]
    assert touched == spills


@pytest.mark.parametrize(
    ("index", "name"),
    exhaustive_unless(
        lambda case: case == (0, "fa2-cupy"), [(i, v) for i, v in CASES if fnmatch(v, BANK_CASES.get(i, ""))]
    ),
)
def test_bank_conflicts_are_those_of_the_hardware(index: int, name: str) -> None:
    """Where ptxas leaves the accesses as they are: it merges some, and repeats others.

    Stores exactly, but for one more of 19,712 in one launch, and copies that part sectors, which take up to twice as
    many. Of loads the hardware counts up to three wavefronts in two
    hundred more, and some twenty in kernels that are short: what else its data pipe was busy with.
    """
    recorded = launches_of(index, name)
    execution = emulated(index, name, Instruments(bank_conflicts=True))
    for launch, measured in zip(execution.launches, recorded):
        rows = {kind: [row for row in launch.shared or () if row.kind == kind] for kind in ("load", "store")}
        instructions = measured["shared_store_instructions"] + (measured.get("shared_copy_instructions") or 0)
        stored = measured["shared_store_wavefronts"] + (measured.get("shared_copy_wavefronts") or 0)
        if sum(row.requests for row in rows["store"]) == instructions:
            wavefronts = sum(row.wavefronts for row in rows["store"])
            more = 2 if parts_sectors(index, name) else MORE_FOR_ZEROS if name == "fa2-mma-cupy" else 1
            assert wavefronts <= stored <= more * wavefronts + 1
        wavefronts = sum(row.wavefronts for row in rows["load"])
        loaded = measured["shared_load_instructions"] + (measured.get("matrix_load_instructions") or 0)
        if sum(row.requests for row in rows["load"]) == loaded:
            assert wavefronts <= measured["shared_load_wavefronts"] <= 1.015 * wavefronts + 20
