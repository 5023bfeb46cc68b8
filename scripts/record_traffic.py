#!/usr/bin/env python3
"""Record what the hardware's own counters say of every variant's traffic, for the tests to hold the emulator against.

Needs a GPU, Nsight Compute (`ncu`) and the permission to read counters. Run from the repository's root:

    python scripts/record_traffic.py tests/hardware/traffic_h200.json

It starts itself under `ncu`: that child runs each variant once on each problem, natively; the counters of each launch
come back as CSV. Clocks are left as they are.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.discovery import discover  # noqa: E402
from harness.problem import Problem  # noqa: E402
from tests.hardware.record import source_hash  # noqa: E402

METRICS = {
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "local_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "local_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    "l2_read_sectors": "lts__t_sectors_srcunit_tex_op_read.sum",
    "l2_write_sectors": "lts__t_sectors_srcunit_tex_op_write.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
}
PROBLEMS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"dtype": "float16"},
    {"dtype": "bfloat16", "causal": True},
    {"heads": 8, "kv_heads": 2, "q_len": 128, "kv_len": 320},
    {"heads": 4, "q_len": 131, "kv_len": 257, "head_dim": 37},
    {"heads": 4, "q_len": 131, "kv_len": 257, "head_dim": 37, "dtype": "float16", "causal": True},
    {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 77, "kv_len": 130, "head_dim": 40, "causal": True},
    {"batch": 3, "heads": 8, "kv_heads": 2, "q_len": 1, "kv_len": 1000},
    {"heads": 3, "q_len": 190, "kv_len": 65, "causal": True},
    {"heads": 2, "q_len": 200, "kv_len": 200, "head_dim": 128},
    {"heads": 16, "q_len": 512, "kv_len": 512},
    {"batch": 8, "heads": 16, "q_len": 1024, "kv_len": 1024},
    {"batch": 8, "heads": 16, "q_len": 1024, "kv_len": 1024, "dtype": "float16", "causal": True},
]
"""Aligned, ragged, causal, grouped, 16 bits; the last two are larger than an H200's 60 MB of L2."""


def run_all() -> None:
    """Under `ncu`: every variant on every problem, once."""
    from harness.executors.gpu import GpuExecutor
    from harness.inputs import draw_inputs

    executor = GpuExecutor(timed=False)
    for fields in PROBLEMS:
        problem = Problem(**fields)
        inputs = draw_inputs(problem)
        for variant in discover().registry:
            if variant.supports(problem) is None:
                executor.run(problem, variant.plan(problem), inputs)


def expected_launches() -> list[tuple[int, str, int, str]]:
    """(problem, variant, launch, kernel) in the order in which the child launches them."""
    launches = []
    for index, fields in enumerate(PROBLEMS):
        problem = Problem(**fields)
        for variant in discover().registry:
            if variant.supports(problem) is None:
                for number, launch in enumerate(variant.plan(problem).launches):
                    launches.append((index, variant.name, number, launch.kernel_name))
    return launches


def profile(ncu: str) -> list[dict[str, Any]]:
    """Kernel name and counters of each launch, in order."""
    names = sorted({name for *_, name in expected_launches()})
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "counters.csv"
        command = [ncu, "--clock-control", "none", "--csv", "--print-units", "base", "--log-file", str(log)]
        command += ["--target-processes", "all", "--kernel-name", f"regex:({'|'.join(names)})"]
        command += ["--metrics", ",".join(METRICS.values()), sys.executable, __file__, "--child"]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        text = log.read_text() if log.exists() else ""
    if ran.returncode or '"ID"' not in text:
        sys.exit(f"ncu did not read the counters:\n{text[-2000:]}\n{ran.stderr[-2000:]}")
    rows: dict[int, dict[str, Any]] = {}
    by_metric = {metric: key for key, metric in METRICS.items()}
    for row in csv.DictReader(io.StringIO(text[text.index('"ID"') :])):
        launch = rows.setdefault(int(row["ID"]), {"kernel": row["Kernel Name"]})
        launch[by_metric[row["Metric Name"]]] = round(float(row["Metric Value"].replace(",", "")))
    return [rows[key] for key in sorted(rows)]


def record(ncu: str) -> dict[str, Any]:
    """The whole record."""
    import cupy

    launches, expected = profile(ncu), expected_launches()
    if len(launches) != len(expected):
        sys.exit(f"ncu saw {len(launches)} launches where {len(expected)} were expected")
    entries = []
    for (index, variant, number, kernel), counters in zip(expected, launches):
        if kernel not in counters["kernel"]:
            sys.exit(f"launch {number} of {variant} is {counters['kernel']}, not {kernel}")
        values = [counters[key] for key in METRICS]
        entries.append({"problem": index, "variant": variant, "launch": number, "kernel": kernel, "values": values})
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True
    )
    name, driver_version = driver.stdout.strip().splitlines()[0].split(", ")
    major, minor = divmod(cupy.cuda.nvrtc.getVersion()[0], 1), cupy.cuda.nvrtc.getVersion()[1]
    return {
        "gpu": name,
        "driver": driver_version,
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "cupy": cupy.__version__,
        "nvrtc": f"{int(major[0])}.{minor}",
        "numba-cuda": version("numba-cuda"),
        "sources": {variant.algorithm: source_hash(variant.algorithm) for variant in discover().registry},
        "metrics": METRICS,
        "problems": PROBLEMS,
        "launches": entries,
    }


def main() -> None:
    """Parse, record, write whole."""
    parser = argparse.ArgumentParser(description="Record the hardware's traffic counters of every variant.")
    parser.add_argument("output", type=Path, nargs="?", help="where the record goes (JSON)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_all()
        return
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("ncu (Nsight Compute) is not on the PATH")
    if arguments.output is None:
        parser.error("say where the record goes")
    found = record(ncu)
    lines = [json.dumps(entry) for entry in found.pop("launches")]
    text = json.dumps(found, indent=1)[:-2] + ',\n "launches": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"
    from harness.file_replacement import replace_files

    replace_files({arguments.output: text.encode()})
    print(f"{len(lines)} launches recorded in {arguments.output}")


if __name__ == "__main__":
    main()
