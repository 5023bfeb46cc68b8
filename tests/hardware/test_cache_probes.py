"""The cache model against an H200 on small kernels that were written to show how its caches behave.

`scripts/record_caches.py` made the record. The model's constants come from these, so this says how well its few rules
describe the hardware; test_cache_record.py says what that is worth for attention.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import pytest

from harness.compilers import DevicePointer, compile_kernel
from harness.compilers.ptxas import find_ptxas, resources
from harness.emulator.abi.cache_layout import LAUNCH_BYTES
from harness.emulator.launch.cache_hierarchy import CacheSizes, MemoryHierarchy
from harness.emulator.memory.residency import residency
from harness.support.gpu_data_sheets import GPUS
from scripts.recording.cache_probes import SOURCE, Probe, probes
from tests.emulator.cuda_kernel import run

RECORD: dict[str, Any] = json.loads((Path(__file__).parent / "caches_h200.json").read_text())
GPU = GPUS["h200"]
LARGEST_ELEMENTS = 12 << 20

pytestmark = pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed: no residency, so no caches")


def modelled(probe: Probe) -> dict[str, int]:
    """What the model says, under the names of the record."""
    kernel = cupy.RawKernel(SOURCE, probe.kernel)
    size = 8 * probe.elements * probe.rounds if probe.kernel == "strided" else probe.elements + 1
    scalars = (np.int64(probe.elements), np.int32(probe.rounds))
    pointers = (DevicePointer(1 << 40, (size,), "float32"), *scalars, DevicePointer(1 << 41, (1,), "float32"))
    compiled = compile_kernel(kernel, pointers, "sm_90")
    used = resources(compiled.ptx, compiled.arch, compiled.entry)
    assert used is not None and used.code_bytes is not None
    hierarchy = MemoryHierarchy(CacheSizes.of(GPU), [("d", 4 * size), ("sink", 4)])
    place = residency(GPU.multiprocessor, probe.threads, used.registers, probe.shared_bytes)
    launch = hierarchy.launch(probe.blocks, place)
    run(
        kernel,
        {"d": np.zeros(size, np.float32), "sink": np.zeros(1, np.float32)},
        ("d", *scalars, "sink"),
        (probe.blocks, 1, 1),
        (probe.threads, 1, 1),
        probe.shared_bytes,
        threads=2,
        step_limit=1 << 40,
        listener=launch,
    )
    counts = launch.finish()
    return {
        "l2_read_sectors": sum(c.l2_read for c in counts),
        "l2_write_sectors": sum(c.l2_write for c in counts),
        "dram_read_bytes": LAUNCH_BYTES + used.code_bytes + 32 * sum(c.dram_read for c in counts),
        "dram_write_bytes": 32 * sum(c.dram_write for c in counts),
    }


def cases(kernel: str) -> list[Any]:
    rows = [(probe, row) for probe, row in zip(probes(), RECORD["probes"]) if probe.kernel == kernel]
    assert rows
    return [
        pytest.param(probe, row, id=f"{probe.elements >> 8} KiB, shared {probe.shared_bytes}, {probe.threads} threads")
        for probe, row in rows
        if probe.elements <= LARGEST_ELEMENTS
    ]


def test_the_record_is_of_these_probes() -> None:
    assert [{key: row[key] for key in vars(probe)} for probe, row in zip(probes(), RECORD["probes"])] == [
        vars(probe) for probe in probes()
    ]
    assert len(RECORD["probes"]) == len(probes())


@pytest.mark.parametrize(("probe", "row"), cases("reread"))
def test_what_l1_keeps_of_a_range(probe: Probe, row: dict[str, int]) -> None:
    """Exactly where the range fits or is far too large; in between within a fifth of what is read."""
    loads = probe.elements // 8 * probe.rounds
    found = modelled(probe)["l2_read_sectors"]
    assert abs(found - row["l2_read_sectors"]) <= 0.2 * loads
    if row["l2_read_sectors"] == probe.elements // 8:
        assert found == row["l2_read_sectors"]


@pytest.mark.parametrize(("probe", "row"), cases("readback"))
def test_l1_has_what_was_stored(probe: Probe, row: dict[str, int]) -> None:
    found = modelled(probe)
    assert found["l2_read_sectors"] == row["l2_read_sectors"] == 0
    assert found["l2_write_sectors"] == row["l2_write_sectors"]


@pytest.mark.parametrize(("probe", "row"), cases("sweep"))
def test_what_l2_keeps_of_a_range(probe: Probe, row: dict[str, int]) -> None:
    """Around the capacity of a cache with copies, which is two thirds of 60 MiB here, within a quarter."""
    found = modelled(probe)
    assert found["dram_read_bytes"] == pytest.approx(row["dram_read_bytes"], rel=0.25)
    if row["dram_read_bytes"] < 1.01 * 4 * probe.elements:
        assert found["dram_read_bytes"] == pytest.approx(row["dram_read_bytes"], rel=0.01)


@pytest.mark.parametrize(("probe", "row"), cases("fill"))
def test_how_much_stays_dirty(probe: Probe, row: dict[str, int]) -> None:
    left = 4 * probe.elements - modelled(probe)["dram_write_bytes"]
    assert left == pytest.approx(4 * probe.elements - row["dram_write_bytes"], rel=0.1)


@pytest.mark.parametrize(("probe", "row"), cases("strided"))
def test_what_dram_delivers(probe: Probe, row: dict[str, int]) -> None:
    assert modelled(probe)["dram_read_bytes"] == pytest.approx(row["dram_read_bytes"], rel=0.002)


@pytest.mark.parametrize(("probe", "row"), cases("unaligned"))
def test_sectors_that_warps_share_are_stored_once(probe: Probe, row: dict[str, int]) -> None:
    assert modelled(probe)["l2_write_sectors"] == row["l2_write_sectors"]
