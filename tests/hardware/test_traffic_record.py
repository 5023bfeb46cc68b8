"""The emulator's sector counts against what an H200's own counters said (scripts/record_traffic.py made the record)."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from harness.compilers.ptxas import find_ptxas
from harness.discovery import discover
from harness.executors import Execution
from harness.executors.emulator import EmulatorExecutor
from harness.inputs import draw_inputs
from harness.kernel_listing import list_kernels
from harness.problem import Problem
from tests.hardware.record import source_hash

RECORD: dict[str, Any] = json.loads((Path(__file__).parent / "traffic_h200.json").read_text())
LARGEST_EMULATED_FLOPS = 3e8
"""Beyond, the variant's claim, which other tests hold against counts, stands in for the emulator."""


def launches_of(index: int, variant: str) -> list[dict[str, int]]:
    rows = [r for r in RECORD["launches"] if r["problem"] == index and r["variant"] == variant]
    return [dict(zip(RECORD["metrics"], row["values"])) for row in rows]


def flops(problem: Problem) -> float:
    return 4.0 * problem.batch * problem.heads * problem.q_len * problem.kv_len * problem.head_dim


@functools.cache
def emulated(index: int, name: str) -> Execution:
    problem = Problem(**RECORD["problems"][index])
    variant = discover().registry.get(name)
    return EmulatorExecutor().run(problem, variant.plan(problem), draw_inputs(problem))


CASES = sorted({(row["problem"], row["variant"]) for row in RECORD["launches"]})


@pytest.mark.parametrize("algorithm", RECORD["sources"])
def test_the_record_was_made_with_these_sources(algorithm: str) -> None:
    assert source_hash(algorithm) == RECORD["sources"][algorithm], (
        f"the record of '{algorithm}' is stale: its sources have changed since {RECORD['date']}; "
        "run scripts/record_traffic.py on a GPU"
    )


@pytest.mark.parametrize(("index", "name"), CASES)
def test_sectors_are_those_of_the_hardware(index: int, name: str) -> None:
    """Exactly: no compiler behind the PTX merges or moves an access of these kernels."""
    problem = Problem(**RECORD["problems"][index])
    measured = launches_of(index, name)
    reads = 32 * sum(launch["load_sectors"] for launch in measured)
    writes = 32 * sum(launch["store_sectors"] for launch in measured)
    if flops(problem) > LARGEST_EMULATED_FLOPS:
        claim = discover().registry.get(name).claim
        assert claim is not None
        ours = claim(problem)
    else:
        ours = emulated(index, name)  # type: ignore[assignment]
    assert ours.read_bytes == reads
    assert ours.write_bytes == writes


@pytest.mark.parametrize(("index", "name"), CASES)
def test_local_memory_is_touched_where_ptxas_spills(index: int, name: str) -> None:
    """PTX does not show what `ptxas` spills; `show` prints it, and the hardware agrees."""
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    listings = list_kernels(discover().registry.get(name), Problem(**RECORD["problems"][index]), "sm_90")
    spills = [l.resources is not None and l.resources.spill_store_bytes > 0 for l in listings]
    touched = [m["local_load_sectors"] + m["local_store_sectors"] > 0 for m in launches_of(index, name)]
    assert touched == spills
