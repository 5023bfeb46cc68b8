#!/usr/bin/env python3
"""Record how a GPU's caches answer the probes of scripts/recording/cache_probes.py, to hold the model against.

Needs a GPU, Nsight Compute (`ncu`) and the permission to read counters. Run from the repository's root:

    python scripts/record_caches.py tests/hardware/caches_h200.json
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.recording.cache_probes import SOURCE, probes  # noqa: E402

METRICS = {
    "l2_read_sectors": "l1tex__m_xbar2l1tex_read_sectors.sum",
    "l2_write_sectors": "lts__t_sectors_srcunit_tex_op_write.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
}
"""Reads at L2 are what comes back to L1: behind that, equal reads of neighbouring multiprocessors are merged."""


def run_all() -> None:
    """Under `ncu`: every probe once."""
    import cupy
    import numpy as np

    memory, sink = cupy.zeros(64 << 20, cupy.float32), cupy.zeros(1, cupy.float32)
    for probe in probes():
        kernel = cupy.RawKernel(SOURCE, probe.kernel)
        kernel.max_dynamic_shared_size_bytes = probe.shared_bytes
        args = (memory, np.int64(probe.elements), np.int32(probe.rounds), sink)
        kernel((probe.blocks,), (probe.threads,), args, shared_mem=probe.shared_bytes)
    cupy.cuda.Device().synchronize()


def measure(ncu: str) -> list[dict[str, int]]:
    """The counters of each probe, in order."""
    names = "|".join(sorted({probe.kernel for probe in probes()}))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "counters.csv")
        command = [ncu, "--clock-control", "none", "--csv", "--print-units", "base", "--log-file", str(log)]
        command += ["--kernel-name", f"regex:^({names})$", "--metrics", ",".join(METRICS.values())]
        ran = subprocess.run([*command, sys.executable, __file__, "--child"], cwd=ROOT, capture_output=True, text=True)
        text = log.read_text() if log.exists() else ""
    if ran.returncode or '"ID"' not in text:
        sys.exit(f"ncu did not read the counters:\n{text[-2000:]}\n{ran.stderr[-2000:]}")
    rows: dict[int, dict[str, int]] = {}
    by_metric = {metric: key for key, metric in METRICS.items()}
    for row in csv.DictReader(io.StringIO(text[text.index('"ID"') :])):
        value = round(float(row["Metric Value"].replace(",", "")))
        rows.setdefault(int(row["ID"]), {})[by_metric[row["Metric Name"]]] = value
    return [rows[key] for key in sorted(rows)]


def main() -> None:
    """Parse, record, write whole."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, nargs="?", help="where the record goes (JSON)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return run_all()
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("ncu (Nsight Compute) is not on the PATH")
    if arguments.output is None:
        parser.error("say where the record goes")
    measured = measure(ncu)
    if len(measured) != len(probes()):
        sys.exit(f"ncu saw {len(measured)} launches where {len(probes())} were expected")
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = subprocess.run(query, capture_output=True, text=True).stdout.strip().splitlines()[0].split(", ")
    head = {"gpu": name, "driver": driver, "date": datetime.date.today().isoformat(), "metrics": METRICS}
    lines = [json.dumps(asdict(probe) | values) for probe, values in zip(probes(), measured)]
    text = json.dumps(head, indent=1)[:-2] + ',\n "probes": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"
    from harness.support.file_replacement import replace_files

    replace_files({arguments.output: text.encode()})
    print(f"{len(lines)} probes recorded in {arguments.output}")


if __name__ == "__main__":
    main()
