"""The emulator's counts against what an H200's own counters said (scripts/record_traffic.py made the record)."""

from __future__ import annotations

import functools
import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from harness.compilers.ptxas import find_ptxas
from harness.emulator.executor import EmulatorExecutor
from harness.emulator.instruments import PLAIN, Instruments
from harness.execution.protocol import Execution
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.operations.attention.problem import Problem
from harness.studies.show.kernel_listing import list_kernels
from tests.hardware.record import plan_hash

RECORD: dict[str, Any] = json.loads((Path(__file__).parent / "traffic_h200.json").read_text())
LARGEST_EMULATED_FLOPS = 1.4e7
"""Beyond, the variant's claim, which other tests hold against counts, stands in for the emulator."""
BANK_CASES = {0: "*-cupy", 7: "*", 30: "fa2-mma-cupy"}
"""Problems, and variants, on which bank conflicts are counted too, which takes long: all aligned, nothing aligned, and
fragments for tensor cores."""
WIDE = 128
MORE_FOR_ZEROS = 1.2
"""The hardware counts some wavefronts twice of a cp.async that brings zeros only (src-size 0), as in tails of keys."""


def launches_of(index: int, variant: str) -> list[dict[str, int]]:
    rows = [r for r in RECORD["launches"] if r["problem"] == index and r["variant"] == variant]
    return [dict(zip(RECORD["metrics"], row["values"])) for row in rows]


def problem(index: int) -> Problem:
    return Problem.from_fields(RECORD["problems"][index])


def flops(problem: Problem) -> float:
    return 4.0 * problem.batch * problem.heads * problem.q_len * problem.kv_len * problem.head_dim


@functools.cache
def emulated(index: int, name: str, instruments: Instruments = PLAIN) -> Execution:
    variant = discover().registry.get(name)
    executor = EmulatorExecutor(instruments=instruments)
    return executor.run(problem(index), variant.plan(problem(index)), draw_inputs(problem(index)))


CASES = sorted({(row["problem"], row["variant"]) for row in RECORD["launches"]})


@pytest.mark.parametrize("name", sorted({name for _, name in CASES}))
def test_the_record_was_made_with_these_kernels(name: str) -> None:
    variant = discover().registry.get(name)
    recorded = {row["problem"]: row["hash"] for row in RECORD["plans"] if row["variant"] == name}
    assert recorded
    stale = [i for i, was in recorded.items() if plan_hash(variant.plan(problem(i)), problem(i)) != was]
    assert not stale, (
        f"the record of {name} is stale: its kernels or launches for problems {stale} have changed since "
        f"{RECORD['date']}; run scripts/record_traffic.py on a GPU"
    )


@pytest.mark.parametrize(("index", "name"), CASES)
def test_sectors_are_those_of_the_hardware(index: int, name: str) -> None:
    """Exactly: no compiler behind the PTX merges or moves an access of these kernels."""
    measured = launches_of(index, name)
    reads = 32 * sum(launch["load_sectors"] for launch in measured)
    writes = 32 * sum(launch["store_sectors"] for launch in measured)
    if flops(problem(index)) > LARGEST_EMULATED_FLOPS:
        claim = discover().registry.get(name).claim
        assert claim is not None
        ours = claim(problem(index))
    else:
        ours = emulated(index, name)  # type: ignore[assignment]
    assert ours.read_bytes == reads
    assert ours.write_bytes == writes


def first_of_each_kernel() -> list[tuple[int, str]]:
    """Cases whose kernels no case before them has: head_dim and dtype are compiled in.

    Of those that are not emulated either, and so compiled for this alone, the ones with most registers.
    """
    kernels = {(problem(i).head_dim, problem(i).dtype, name): (i, name) for i, name in reversed(CASES)}
    return sorted(
        (i, name)
        for i, name in kernels.values()
        if flops(problem(i)) <= LARGEST_EMULATED_FLOPS or problem(i).head_dim >= WIDE
    )


@pytest.mark.parametrize(("index", "name"), first_of_each_kernel())
def test_local_memory_is_touched_where_ptxas_spills(index: int, name: str) -> None:
    """PTX does not show what `ptxas` spills; `show` prints it, and the hardware agrees."""
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    listings = list_kernels(discover().registry.get(name), problem(index), "sm_90")
    spills = [l.resources is not None and l.resources.spill_store_bytes > 0 for l in listings]
    touched = [m["local_load_sectors"] + m["local_store_sectors"] > 0 for m in launches_of(index, name)]
    assert touched == spills


@pytest.mark.parametrize(("index", "name"), [(i, v) for i, v in CASES if fnmatch(v, BANK_CASES.get(i, ""))])
def test_bank_conflicts_are_those_of_the_hardware(index: int, name: str) -> None:
    """Where ptxas leaves the accesses as they are: it merges some, and repeats others.

    Stores exactly. Of loads the hardware counts up to three wavefronts in two hundred more, and some twenty in kernels
    that are short: what else its data pipe was busy with.
    """
    execution = emulated(index, name, Instruments(bank_conflicts=True))
    for launch, measured in zip(execution.launches, launches_of(index, name)):
        rows = {kind: [row for row in launch.shared or () if row.kind == kind] for kind in ("load", "store")}
        instructions = measured["shared_store_instructions"] + (measured.get("shared_copy_instructions") or 0)
        stored = measured["shared_store_wavefronts"] + (measured.get("shared_copy_wavefronts") or 0)
        if sum(row.requests for row in rows["store"]) == instructions:
            wavefronts = sum(row.wavefronts for row in rows["store"])
            assert wavefronts <= stored <= (MORE_FOR_ZEROS if name == "fa2-mma-cupy" else 1) * wavefronts
        wavefronts = sum(row.wavefronts for row in rows["load"])
        loaded = measured["shared_load_instructions"] + (measured.get("matrix_load_instructions") or 0)
        if sum(row.requests for row in rows["load"]) == loaded:
            assert wavefronts <= measured["shared_load_wavefronts"] <= 1.015 * wavefronts + 20
