#!/usr/bin/env python3
"""Record what the hardware's own counters say of every variant, for the tests to hold the emulator against.

Needs a GPU, Nsight Compute (`ncu`) and the permission to read counters. Run from the repository's root:

    python scripts/record_traffic.py tests/hardware/traffic_h200.json

Every variant runs natively, once on each problem, under `ncu`: each launch from empty caches. Plans of several
launches are measured once more as a whole, from empty caches before the first launch to the end of the last: what a
launch leaves in L2 for the next one shows there. Clocks are left as they are.

What changed alone is measured with `--keep`, on the machine that the record is from:

    python scripts/record_traffic.py tests/hardware/traffic_h200.json --keep tests/hardware/traffic_h200.json

Counters that the kept record does not have are null in what is kept of it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness import Problem, Variant  # noqa: E402
from harness.execution.planning import refusal_of  # noqa: E402
from harness.gpu.hardware_counters import Run, profile  # noqa: E402
from harness.gpu.nsight_compute import Counters, Replay, find_ncu  # noqa: E402
from harness.model.discovery import discover  # noqa: E402 - the repository need not be installed
from harness.support.errors import CountersUnavailable, UsageError  # noqa: E402
from harness.support.file_replacement import replace_files, require_writable  # noqa: E402
from scripts.recording.environment import environment  # noqa: E402
from scripts.recording.plan_hash import plan_hash  # noqa: E402

TRAFFIC = {
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "copy_sectors": "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum",
    "copy_requests": "smsp__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts.sum",
    "local_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "local_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    "l1_load_hit_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum",
    "l1_fill_sectors": "l1tex__m_xbar2l1tex_read_sectors.sum",
    "l2_read_sectors": "lts__t_sectors_srcunit_tex_op_read.sum",
    "l2_write_sectors": "lts__t_sectors_srcunit_tex_op_write.sum",
    "l2_read_hit_sectors": "lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum",
    "l2_read_miss_sectors": "lts__t_sectors_srcunit_tex_op_read_lookup_miss.sum",
    "l2_fabric_sectors": "lts__t_sectors_srcunit_ltcfabric.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
}
SHARED_MEMORY = {
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared_copy_wavefronts": "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",
    "shared_load_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared_store_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "shared_load_instructions": "smsp__inst_executed_op_shared_ld.sum",
    "shared_store_instructions": "smsp__inst_executed_op_shared_st.sum",
    "shared_copy_instructions": "smsp__inst_executed_op_ldgsts.sum",
    "matrix_load_instructions": "smsp__inst_executed_op_ldsm.sum",
}
LAUNCH = {
    "time_ns": "gpu__time_duration.sum",
    "sm_cycles": "sm__cycles_active.avg",
    "active_warps_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "theoretical_warps_pct": "sm__maximum_warps_per_active_cycle_pct",
    "grid_blocks": "launch__grid_size",
    "block_threads": "launch__block_size",
    "registers": "launch__registers_per_thread",
    "shared_static_bytes": "launch__shared_mem_per_block_static",
    "shared_dynamic_bytes": "launch__shared_mem_per_block_dynamic",
    "shared_driver_bytes": "launch__shared_mem_per_block_driver",
    "shared_carveout_bytes": "launch__shared_mem_config_size",
    "blocks_limit": "launch__occupancy_limit_blocks",
    "blocks_by_registers": "launch__occupancy_limit_registers",
    "blocks_by_shared_memory": "launch__occupancy_limit_shared_mem",
    "blocks_by_warps": "launch__occupancy_limit_warps",
}
METRICS = {**TRAFFIC, **SHARED_MEMORY, **LAUNCH}
"""Our names -> Nsight Compute's. What a GPU or an ncu does not have is recorded as null."""
RANGE_METRICS = {
    key: METRICS[key]
    for key in ("l2_read_sectors", "l2_write_sectors", "dram_read_bytes", "dram_write_bytes", "time_ns")
}
"""Of whole plans."""

PROBLEMS: list[dict[str, Any]] = [
    # Small: aligned, ragged, causal, grouped, 16 bits.
    {},
    {"mask": "causal"},
    {"dtype": "float16"},
    {"dtype": "bfloat16", "mask": "causal"},
    {"heads": 8, "kv_heads": 2, "q_len": 128, "kv_len": 320},
    {"heads": 4, "q_len": 131, "kv_len": 257, "head_dim": 37},
    {"heads": 4, "q_len": 131, "kv_len": 257, "head_dim": 37, "dtype": "float16", "mask": "causal"},
    {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 77, "kv_len": 130, "head_dim": 40, "mask": "causal"},
    {"batch": 3, "heads": 8, "kv_heads": 2, "q_len": 1, "kv_len": 1000},
    {"heads": 3, "q_len": 190, "kv_len": 65, "mask": "causal"},
    {"heads": 2, "q_len": 200, "kv_len": 200, "head_dim": 128},
    {"heads": 16, "q_len": 512, "kv_len": 512},
    # Q, K, V and O together: more than the 60 MB of an H200's L2, and about as much. 134 and 67 MB.
    {"batch": 8, "heads": 16, "q_len": 1024, "kv_len": 1024},
    {"batch": 8, "heads": 16, "q_len": 1024, "kv_len": 1024, "dtype": "float16", "mask": "causal"},
    # Many heads: 17, 34, 50, 67, 101 and 201 MB.
    {"heads": 16, "q_len": 1024, "kv_len": 1024},
    {"heads": 32, "q_len": 1024, "kv_len": 1024},
    {"heads": 48, "q_len": 1024, "kv_len": 1024},
    {"heads": 64, "q_len": 1024, "kv_len": 1024, "mask": "causal"},
    {"batch": 4, "heads": 24, "q_len": 1024, "kv_len": 1024},
    {"batch": 64, "heads": 12, "q_len": 256, "kv_len": 256},
    # Grouped heads, 42 MB; wide heads, 34 and 67 MB; ragged, 28 MB.
    {"batch": 4, "heads": 16, "kv_heads": 4, "q_len": 1024, "kv_len": 1024},
    {"heads": 8, "q_len": 2048, "kv_len": 2048, "head_dim": 128},
    {"heads": 16, "q_len": 2048, "kv_len": 2048, "head_dim": 128, "mask": "causal"},
    {"heads": 40, "q_len": 1500, "kv_len": 700, "head_dim": 80, "dtype": "bfloat16"},
    # Few heads of many rows: K and V are read again by many blocks. 21, 10 and 12 MB.
    {"heads": 4, "q_len": 8192, "kv_len": 2048},
    {"heads": 1, "q_len": 4096, "kv_len": 16384},
    {"heads": 2, "q_len": 5793, "kv_len": 5793, "mask": "causal"},
    # Few queries, many keys: decoding. 67, 135 and 134 MB.
    {"heads": 8, "q_len": 64, "kv_len": 16384},
    {"batch": 32, "heads": 32, "kv_heads": 8, "q_len": 1, "kv_len": 1024},
    {"batch": 8, "heads": 32, "kv_heads": 8, "q_len": 4, "kv_len": 4096, "head_dim": 128, "dtype": "float16"},
    # For tensor cores: grouped and wide, decoding, narrow and ragged, long.
    {"heads": 8, "kv_heads": 2, "q_len": 128, "kv_len": 320, "head_dim": 128, "dtype": "float16"},
    {"batch": 3, "heads": 8, "kv_heads": 2, "q_len": 1, "kv_len": 1000, "dtype": "bfloat16"},
    {
        "batch": 2,
        "heads": 4,
        "kv_heads": 2,
        "q_len": 77,
        "kv_len": 130,
        "head_dim": 36,
        "dtype": "float16",
        "mask": "causal",
    },
    {"heads": 16, "q_len": 2048, "kv_len": 2048, "head_dim": 128, "dtype": "bfloat16", "mask": "causal"},
    # Windows: short and ragged, and long with most tiles outside.
    {"heads": 2, "q_len": 131, "kv_len": 257, "dtype": "float16", "mask": "window:70,9"},
    {"heads": 16, "q_len": 2048, "kv_len": 2048, "mask": "causal+window:256"},
]
SLOWEST_BLOCK_FLOPS = 1e10
"""fa1 has one thread block per head, which counts a head's keys in order: beyond, it takes a second per pass of ncu."""


def all_runs() -> list[tuple[int, Run]]:
    """Each run with the index of its problem."""
    return [
        (index, Run(variant.name, problem))
        for index, problem in enumerate(Problem(**fields) for fields in PROBLEMS)
        for variant in discover().registry
        if refusal_of(variant, problem) is None and not is_too_slow(variant, problem)
    ]


def is_too_slow(variant: Variant, problem: Problem) -> bool:
    """Whether one block has too much to do."""
    head_flops = 4 * problem.q_len * problem.kv_len * problem.head_dim
    return variant.algorithm == "fa1" and head_flops > SLOWEST_BLOCK_FLOPS


def record(kept: dict[str, Any]) -> dict[str, Any]:
    """The whole record; what `kept` has of the same plans is not measured again. Raises `CountersUnavailable`.

    Raises `UsageError` where `kept` is from another machine.
    """
    runs, registry = all_runs(), discover().registry
    plans = [registry.get(run.variant).plan(run.problem) for _, run in runs]
    hashes = [plan_hash(plan, run.problem) for (_, run), plan in zip(runs, plans)]
    made_on = {**environment(), "ncu": ncu_version()}
    old = Kept(kept, made_on)
    held = {(index, run.variant) for (index, run), known in zip(runs, hashes) if old.has(index, run.variant, known)}
    missing = [(index, run) for index, run in runs if (index, run.variant) not in held]
    entries, begun = old.rows("launches", METRICS, held), time.monotonic()
    for (index, run), counters in zip(missing, profile([run for _, run in missing], list(METRICS.values()))):
        for number, launch in enumerate(counters):
            found = {"problem": index, "variant": run.variant, "launch": number, "kernel": launch.name}
            entries.append({**found, "values": values(launch, METRICS)})
    print(f"{len(missing)} plans in {time.monotonic() - begun:.0f} s, {len(entries)} launches", flush=True)
    begun = time.monotonic()
    several = [run for run, plan in zip(runs, plans) if len(plan.launches) > 1 and run in missing]
    wholes = profile([run for _, run in several], list(RANGE_METRICS.values()), replay=Replay.PLAN)
    ranges = old.rows("ranges", RANGE_METRICS, held)
    for (index, run), (whole,) in zip(several, wholes):
        ranges.append({"problem": index, "variant": run.variant, "values": values(whole, RANGE_METRICS)})
    print(f"{len(several)} plans of several launches in {time.monotonic() - begun:.0f} s", flush=True)
    order = {(index, run.variant): number for number, (index, run) in enumerate(runs)}
    for rows in (entries, ranges):
        rows.sort(key=lambda row: (order[row["problem"], row["variant"]], row.get("launch", 0)))
    return {
        **made_on,
        "metrics": METRICS,
        "range_metrics": RANGE_METRICS,
        "problems": PROBLEMS,
        "plans": [
            {"problem": index, "variant": run.variant, "hash": known} for (index, run), known in zip(runs, hashes)
        ],
        "ranges": ranges,
        "launches": entries,
    }


class Kept:
    """An earlier record, as far as it is still of these kernels."""

    def __init__(self, record: dict[str, Any], made_on: dict[str, Any]) -> None:
        self._record = record
        differs = [key for key in made_on if key != "date" and record and record.get(key) != made_on[key]]
        if differs:
            was = ", ".join(f"{key} {record.get(key)}" for key in differs)
            raise UsageError(f"the record to keep is from another machine ({was}); leave --keep out")
        # Problems are known by their fields: others may have come before them.
        self._indices = {
            number: PROBLEMS.index(p) for number, p in enumerate(record.get("problems", ())) if p in PROBLEMS
        }
        self._hashes = {
            (self._indices.get(row["problem"]), row["variant"]): row["hash"] for row in record.get("plans", ())
        }

    def has(self, problem: int, variant: str, known: str) -> bool:
        """Whether it measured this plan."""
        return self._hashes.get((problem, variant)) == known

    def rows(self, table: str, metrics: dict[str, str], plans: set[tuple[int, str]]) -> list[dict[str, Any]]:
        """What a table has of these plans, each a problem and a variant; its values in the order of `metrics`."""
        names = self._record.get("metrics" if table == "launches" else "range_metrics", {})
        found = []
        for row in self._record.get(table, ()):
            index = self._indices.get(row["problem"])
            if (index, row["variant"]) in plans:
                had = dict(zip(names, row["values"]))
                found.append({**row, "problem": index, "values": [had.get(name) for name in metrics]})
        return found


def values(counters: Counters, metrics: dict[str, str]) -> list[float | None]:
    """In the order of `metrics`."""
    return [counters.values.get(metric) for metric in metrics.values()]


def ncu_version() -> str:
    """The last line of what `ncu --version` prints."""
    done = subprocess.run([find_ncu() or "ncu", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


def main() -> None:
    """Parse, record, write whole."""
    parser = argparse.ArgumentParser(description="Record the hardware's counters of every variant.")
    parser.add_argument("output", type=Path, help="where the record goes (JSON)")
    parser.add_argument("--keep", type=Path, help="an earlier record: what it has of the same plans is kept")
    arguments = parser.parse_args()
    output: Path = arguments.output
    try:
        require_writable(output)
        found = record({} if arguments.keep is None else json.loads(arguments.keep.read_text()))
        replace_files({output: text_of(found).encode()})
    except (CountersUnavailable, UsageError) as error:
        sys.exit(str(error))
    print(f"recorded in {output}")


def text_of(found: dict[str, Any]) -> str:
    """JSON with a line per entry, so that a new record can be compared with an old one."""
    parts = []
    for key, value in found.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        parts.append(f' "{key}": {text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
