#!/usr/bin/env python3
"""Record what a GPU counts of asynchronous copies, arranged as scripts/recording/copy_probes.py says.

Needs a GPU, Nsight Compute (`ncu`) and the permission to read counters. Run from the repository's root:

    python scripts/record_copies.py tests/hardware/copies_h100.json
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.gpu.hardware_counters import Run, profile  # noqa: E402
from harness.gpu.nsight_compute import BULK_LOADS, BULK_STORES  # noqa: E402
from harness.support.errors import CountersUnavailable, UsageError  # noqa: E402
from harness.support.file_replacement import replace_files, require_writable  # noqa: E402
from scripts.recording import copy_probes  # noqa: E402
from scripts.recording.environment import environment  # noqa: E402

METRICS = {
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "copy_sectors": "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum",
    "bulk_load_sectors": BULK_LOADS,
    "bulk_store_sectors": BULK_STORES,
    "l1_fill_sectors": "l1tex__m_xbar2l1tex_read_sectors.sum",
    "l2_read_sectors": "lts__t_sectors_srcunit_tex_op_read.sum",
    "l2_write_sectors": "lts__t_sectors_srcunit_tex_op_write.sum",
    "shared_copy_wavefronts": "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",
}
"""Our names -> Nsight Compute's. Reads at L2 are `l1_fill_sectors`: what `l2_read_sectors` counts was merged before."""


def main() -> None:
    """Parse, record, write whole."""
    parser = argparse.ArgumentParser(description="Record what a GPU counts of asynchronous copies.")
    parser.add_argument("output", type=Path, help="where the record goes (JSON)")
    output: Path = parser.parse_args().output
    probes = copy_probes.probes()
    runs = [Run(f"copy-{number}", copy_probes.PROBLEM) for number in range(len(probes))]
    try:
        require_writable(output)
        measured = profile(runs, list(METRICS.values()), [Path(copy_probes.__file__)])
    except (CountersUnavailable, UsageError) as error:
        sys.exit(str(error))
    rows = [
        json.dumps(asdict(probe) | {"values": [counters.values.get(name) for name in METRICS.values()]})
        for probe, (counters,) in zip(probes, measured)
    ]
    head = json.dumps({**environment(), "metrics": METRICS}, indent=1)
    replace_files({output: (head[:-2] + ',\n "probes": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n").encode()})
    print(f"{len(rows)} probes recorded in {output}")


if __name__ == "__main__":
    main()
