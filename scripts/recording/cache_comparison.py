"""The modelled caches against a record of the hardware's counters, launch by launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.emulator.executor import EmulatorExecutor
from harness.execution.run_settings import CacheModel, RunSettings
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.support.gpu_data_sheets import GPUS
from scripts.recording.plan_hash import plan_hash, recorded_hashes
from scripts.recording.recorded_problem import recorded_problem

GPU = GPUS["h200"]
MODEL = CacheModel(GPU, flushed=True)
"""As Nsight Compute arranges it: every launch begins with empty caches."""
NEAR = (0.4 * GPU.l2_bytes, 1.5 * GPU.l2_bytes)
"""Bytes of the buffers that a launch touches, between which it is near the capacity of L2.

What all SMs read is kept in both partitions, so half of L2 is the least that may not fit; beyond one and a half no loop
over a buffer finds anything of it again.
"""


def half(problem: int, variant: str) -> int:
    """0 or 1, by a fixed rule: every other problem, and there the other half of the variants."""
    return (problem + len(variant)) % 2


@dataclass(frozen=True)
class Comparison:
    """One launch. Sectors of 32 bytes."""

    problem: int
    variant: str
    launch: int
    kernel: str
    footprint_bytes: int
    """Bytes of the buffers that the launch reads or writes."""
    load_sectors: int
    atomic_sectors: int
    """Read and written where they lie; the hardware counts as read what comes back to L1, nothing of a reduction."""
    l2_read: int
    """What L1 leaves of loads and copies, modelled, and atomics."""
    measured_l2_read: int
    """Load sectors less those that hit in L1."""
    measured_coalesced: int
    """What arrives at L2's slices, behind the coalescer that merges equal reads of neighbouring SMs."""
    l2_write: int
    measured_l2_write: int
    dram_read: int
    measured_dram_read: int
    dram_write: int
    measured_dram_write: int

    @property
    def is_near(self) -> bool:
        """Whether its footprint is near the capacity of L2."""
        return NEAR[0] <= self.footprint_bytes <= NEAR[1]

    @property
    def half(self) -> int:
        """Which half of the variants this row belongs to, 0 or 1."""
        return half(self.problem, self.variant)

    @property
    def l1_keeps(self) -> bool:
        """Whether the L1 of the hardware answered anything."""
        return self.measured_l2_read != self.load_sectors

    def miss(self, level: str) -> float:
        """How far the model is off, relative to what was measured."""
        modelled, measured = getattr(self, level), getattr(self, f"measured_{level}")
        return (modelled - measured) / measured if measured else float(modelled != 0)


def compare(record: Mapping[str, Any], problem: int, variant: str) -> Iterator[Comparison]:
    """Run one variant on one problem of the record, and yield its launches; none where they are others by now.

    Without those that load boxes by TMA: what comes back to L1 has zeros among it that no memory was read for.
    """
    recorded = recorded_problem(record["problems"][problem])
    plan = discover().registry.get(variant).plan(recorded)
    if plan_hash(plan, recorded) not in recorded_hashes(record, problem, variant):
        return
    sizes = {name: buffer.size_bytes for name, buffer in plan.all_buffers(recorded).items()}
    execution = EmulatorExecutor(RunSettings(caches=MODEL)).run(recorded, plan, draw_inputs(recorded))
    rows = {r["launch"]: r for r in record["launches"] if (r["problem"], r["variant"]) == (problem, variant)}
    for number, launch in enumerate(execution.launches):
        assert launch.traffic is not None
        if launch.caches is None:
            continue
        measured = dict(zip(record["metrics"], rows[number]["values"]))
        if measured.get("bulk_load_sectors"):
            continue
        loads = measured["load_sectors"]  # those of copies are among them
        fills = measured.get("l1_fill_sectors")
        buffers = launch.caches.buffers
        yield Comparison(
            problem,
            variant,
            number,
            launch.kernel,
            sum(sizes[name] for name in {site.buffer for site in launch.traffic} if name in sizes),
            loads,
            sum(site.sectors for site in launch.traffic if site.kind == "atomic"),
            sum(b.l2_read_bytes for b in buffers) // 32,
            loads - measured.get("l1_load_hit_sectors", 0) if fills is None else fills,
            measured["l2_read_sectors"],
            sum(b.l2_write_bytes for b in buffers) // 32,
            measured["l2_write_sectors"],
            sum(b.dram_read_bytes for b in buffers) // 32,
            measured["dram_read_bytes"] // 32,
            sum(b.dram_write_bytes for b in buffers) // 32,
            measured["dram_write_bytes"] // 32,
        )
