#!/usr/bin/env python3
"""Record what the hardware's own counters say of every variant, for the tests to hold the emulator against.

Needs a GPU, Nsight Compute (`ncu`) and the permission to read counters. Run from the repository's root:

    python scripts/record_traffic.py tests/hardware/traffic_h200.json

Every variant runs natively, once on each problem, under `ncu`: each launch from empty caches. Plans of several
launches are measured once more as a whole, from empty caches before the first launch to the end of the last: what a
launch leaves in L2 for the next one shows there. Clocks are left as they are.

What changed alone is measured with `--keep`, on the machine that the record is from:

    python scripts/record_traffic.py tests/hardware/traffic_h200.json --keep tests/hardware/traffic_h200.json

Counters that the kept record does not have are null in what is kept of it. Where there are two GPUs, each can have half
of the runs, and a third call puts both together:

    CUDA_VISIBLE_DEVICES=0 TMPDIR=/tmp/0 python scripts/record_traffic.py a.json --share 0/2 &
    CUDA_VISIBLE_DEVICES=1 TMPDIR=/tmp/1 python scripts/record_traffic.py b.json --share 1/2; wait
    python scripts/record_traffic.py tests/hardware/traffic_h200.json --keep a.json --keep b.json

(ncu keeps a lock in the temporary folder, so that there is one at a time.)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness import Variant  # noqa: E402
from harness.execution.planning.variant_calls import refusal_of  # noqa: E402
from harness.gpu.hardware_counters import Run, profile  # noqa: E402
from harness.gpu.nsight_compute import BULK_LOADS, BULK_STORES, Counters, Replay, find_ncu  # noqa: E402
from harness.model.discovery import discover  # noqa: E402 - the repository need not be installed
from harness.model.plan import Plan  # noqa: E402
from harness.model.problem import BaseProblem  # noqa: E402
from harness.support.errors import CountersUnavailable, UsageError  # noqa: E402
from harness.support.file_replacement import replace_files, require_writable  # noqa: E402
from harness.support.progress import progress_bar  # noqa: E402
from scripts.recording.environment import environment, require_same_machine  # noqa: E402
from scripts.recording.plan_hash import plan_hash  # noqa: E402
from scripts.recording.recorded_problem import recorded_problem  # noqa: E402
from scripts.recording.traffic_problems import PROBLEMS  # noqa: E402

TRAFFIC = {
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "copy_sectors": "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum",
    "copy_requests": "smsp__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts.sum",
    "bulk_load_sectors": BULK_LOADS,
    "bulk_store_sectors": BULK_STORES,
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
"""Metrics of whole plans."""

SLOWEST_BLOCK_FLOPS = 1e10
"""fa1 has one thread block per head, which counts a head's keys in order: beyond, it takes a second per pass of ncu."""
ONE_BLOCK_PER_HEAD = ("fa1", "bwd-fa1")
"""Algorithms with so few."""


Case = tuple[int, Run]
"""A run with the index of its problem."""
Measured = tuple[tuple[Counters, ...], tuple[Counters, ...]]
"""Counters of each launch, and of the plan as a whole."""
AT_ONCE = 64
"""Runs that one call of ncu measures. Each call starts the program several times."""
ARCH = "sm_90"
"""Records are of Hopper GPUs."""


def all_runs() -> list[Case]:
    """All that the record wants."""
    return [
        (index, Run(variant.name, problem))
        for index, problem in enumerate(map(recorded_problem, PROBLEMS))
        for variant in discover().registry
        if refusal_of(variant, problem, ARCH) is None and not is_too_slow(variant, problem)
    ]


def is_too_slow(variant: Variant, problem: BaseProblem) -> bool:
    """Whether one block has too much to do."""
    return (
        variant.algorithm in ONE_BLOCK_PER_HEAD and problem.flops > SLOWEST_BLOCK_FLOPS * problem.heads * problem.batch
    )


def record(
    kept: Sequence[dict[str, Any]], share: tuple[int, int], seconds: float, variants: str = "*"
) -> Iterator[dict[str, Any]]:
    """The record, whole each time that some more is measured, and at the end.

    It has what `kept` have of the same plans. Of the others those of `variants` are measured, every share[1]-th from
    number share[0] on, as long as there are `seconds`: small problems first. A run that fails under ncu is named and
    left out. Raises `UsageError` where a kept record is from another machine.
    """
    runs, registry = all_runs(), discover().registry
    plans = {case: registry.get(case[1].variant).plan(case[1].problem) for case in runs}
    hashes = {case: plan_hash(plan, case[1].problem) for case, plan in plans.items()}
    made_on = {**environment(), "ncu": ncu_version()}
    entries, ranges, known = [], [], set()
    for old in (Kept(record, made_on) for record in kept):
        new = {name_of(case) for case in runs if old.has(*name_of(case), hashes[case])} - known
        entries += old.rows("launches", METRICS, new)
        ranges += old.rows("ranges", RANGE_METRICS, new)
        known |= new
    missing = [case for case in runs if name_of(case) not in known and fnmatch(case[1].variant, variants)]
    missing = sorted(missing, key=lambda case: case[1].problem.flops)[share[0] :: share[1]]
    order = {name_of(case): number for number, case in enumerate(runs)}

    def so_far() -> dict[str, Any]:
        for rows in (entries, ranges):
            rows.sort(key=lambda row: (order[row["problem"], row["variant"]], row.get("launch", 0)))
        return {
            **made_on,
            "metrics": METRICS,
            "range_metrics": RANGE_METRICS,
            "problems": PROBLEMS,
            "plans": [
                {"problem": index, "variant": variant, "hash": hashes[case]}
                for case, (index, variant) in ((case, name_of(case)) for case in runs)
                if (index, variant) in known
            ],
            "ranges": ranges,
            "launches": entries,
        }

    end = time.monotonic() + seconds
    with progress_bar(len(missing)) as progress:
        for some in (missing[at : at + AT_ONCE] for at in range(0, len(missing), AT_ONCE)):
            if time.monotonic() > end:
                break
            for case, (launches, whole) in measured(some, plans).items():
                index, variant = name_of(case)
                row = {"problem": index, "variant": variant}
                entries += [
                    {**row, "launch": number, "kernel": launch.name, "values": values(launch, METRICS)}
                    for number, launch in enumerate(launches)
                ]
                ranges += [{**row, "values": values(one, RANGE_METRICS)} for one in whole]
                known.add((index, variant))
            for case in some:
                progress.step(case[1].variant)
            yield so_far()
    print(f"{len(known)} of {len(runs)} plans, {len(entries)} launches", flush=True)
    yield so_far()


def name_of(case: Case) -> tuple[int, str]:
    """What the record knows a run by: the problem's index, the variant's name."""
    return case[0], case[1].variant


def measured(cases: Sequence[Case], plans: Mapping[Case, Plan]) -> dict[Case, Measured]:
    """The counters of each launch, and, where there are several, of the plan as a whole: none or one.

    Where ncu fails, half of the cases at a time; what fails alone is named, and left out.
    """
    try:
        launches = profile([run for _, run in cases], list(METRICS.values()))
        several = [case for case in cases if len(plans[case].launches) > 1]
        wholes = profile([run for _, run in several], list(RANGE_METRICS.values()), replay=Replay.PLAN)
    except CountersUnavailable as error:
        if len(cases) > 1:
            middle = len(cases) // 2
            return measured(cases[:middle], plans) | measured(cases[middle:], plans)
        print(f"{cases[0][1].variant} on problem {cases[0][0]} is left out: {error}", file=sys.stderr, flush=True)
        return {}
    of_plan = dict(zip(several, wholes))
    return {case: (found, of_plan.get(case, ())) for case, found in zip(cases, launches)}


class Kept:
    """An earlier record, as far as it is still of these kernels."""

    def __init__(self, record: dict[str, Any], made_on: dict[str, Any]) -> None:
        self._record = record
        if record:
            require_same_machine(record, made_on)
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
    """Parse, record, write whole after each call of ncu: what was measured outlives a run that is cut off."""
    parser = argparse.ArgumentParser(description="Record the hardware's counters of every variant.")
    parser.add_argument("output", type=Path, help="where the record goes (JSON)")
    parser.add_argument(
        "--keep", type=Path, action="append", default=[], metavar="FILE",
        help="an earlier record: what it has of the same plans is kept; may be given several times",
    )  # fmt: skip
    parser.add_argument("--share", default="0/1", metavar="I/N", help="measure every N-th run from number I on")
    parser.add_argument("--variants", default="*", metavar="GLOB", help="measure these alone")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more runs after so long")
    arguments = parser.parse_args()
    output: Path = arguments.output
    try:
        require_writable(output)
        kept = [json.loads(path.read_text()) for path in arguments.keep]
        for found in record(kept, share_of(arguments.share), arguments.seconds, arguments.variants):
            replace_files({output: text_of(found).encode()})
    except (CountersUnavailable, UsageError) as error:
        sys.exit(str(error))
    print(f"recorded in {output}")


def share_of(text: str) -> tuple[int, int]:
    """`1/2` -> (1, 2). Raises `UsageError`."""
    try:
        number, shares = map(int, text.split("/"))
    except ValueError:
        number, shares = -1, 0
    if not 0 <= number < shares:
        raise UsageError(f"--share {text} is not I/N with I from 0 to N - 1, such as 0/2")
    return number, shares


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
