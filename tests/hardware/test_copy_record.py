"""Asynchronous copies on the emulator against what a GPU counted of them (scripts/record_copies.py made the record)."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from emulators import emulator
from lanes import exhaustive_unless

from harness.compilers.ptxas import find_ptxas
from harness.emulator.executor import EmulatorExecutor
from harness.execution.run_settings import CacheModel, RunSettings
from harness.model.operation import draw_inputs
from harness.support.gpu_data_sheets import GPUS
from scripts.recording.copy_probes import PROBLEM, Probe, probes

RECORD: dict[str, Any] = json.loads((Path(__file__).parent / "copies_h100.json").read_text())
PROBES = probes()
EVERY = 6
"""The default lane looks at one probe of so many."""


def test_the_record_is_of_these_probes() -> None:
    recorded = [{name: value for name, value in row.items() if name != "values"} for row in RECORD["probes"]]
    assert recorded == json.loads(json.dumps([asdict(probe) for probe in PROBES]))


@cache
def inputs() -> Any:
    return draw_inputs(PROBLEM)


def counted(number: int) -> dict[str, int]:
    return dict(zip(RECORD["metrics"], RECORD["probes"][number]["values"]))


def is_store(probe: Probe) -> bool:
    return probe.kernel.startswith("store")


@pytest.mark.parametrize("number", exhaustive_unless(lambda number: number % EVERY == 0, range(len(PROBES))))
def test_sectors_are_those_of_the_hardware(number: int) -> None:
    (launch,) = emulator().run(PROBLEM, PROBES[number].plan(), inputs()).launches
    hardware = counted(number)
    loaded = hardware["load_sectors"] + hardware["bulk_load_sectors"]
    expected = hardware["bulk_store_sectors"] if is_store(PROBES[number]) else loaded
    assert sum(row.sectors for row in launch.traffic or ()) == expected


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed: no residency, so no caches")
@pytest.mark.parametrize("number", exhaustive_unless(lambda number: number % EVERY == 1, range(len(PROBES))))
def test_sectors_at_l2_are_those_of_the_hardware(number: int) -> None:
    executor = EmulatorExecutor(RunSettings(caches=CacheModel(GPUS["h100"], flushed=True)))
    (launch,) = executor.run(PROBLEM, PROBES[number].plan(), inputs()).launches
    assert launch.caches is not None
    if is_store(PROBES[number]):
        assert sum(b.l2_write_bytes for b in launch.caches.buffers) == 32 * counted(number)["l2_write_sectors"]
    else:
        assert sum(b.l2_read_bytes for b in launch.caches.buffers) == 32 * counted(number)["l1_fill_sectors"]
