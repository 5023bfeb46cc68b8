"""Reads the GPU's hardware counters by running Nsight Compute's command line `ncu`.

`ncu` is used directly instead of the package nsight-python, which restarts the caller's script for each pass, supports
one kernel per annotation or sums those of one, and depends on pandas. Here a plan has several launches, each of which
is measured separately, and `ncu` writes CSV.

What is measured (Nsight Compute, Kernel Profiling Guide, sections "Replay" and "Cache Control"): a kernel is replayed
as often as its counters need passes, each time with the same memory and, with `--cache-control all`, with empty caches.
So each launch of a plan is measured in isolation: data that the launch before it left in L2 is read from DRAM again.
`Replay.PLAN` measures the launches of a plan as one range instead, which starts with empty caches. In both modes lines
that were written and still lie in L2 at the end have not reached DRAM: compare writes at L2.

Clocks are not locked.
"""

from __future__ import annotations

import csv
import enum
import io
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.support.errors import CountersUnavailable
from harness.support.memory_units import SECTOR_BYTES


@dataclass(frozen=True)
class LevelMetrics:
    """The counters of one memory level; those of one direction are summed."""

    read: tuple[str, ...]
    written: tuple[str, ...]
    unit_bytes: int
    """Bytes per count."""


_L1 = "l1tex__t_sectors_pipe_lsu_mem_global_op"
BULK_LOADS = "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum"
BULK_STORES = "l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum"
BULK_REDUCTIONS = "l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_red.sum"
SINCE_HOPPER = (BULK_LOADS, BULK_STORES, BULK_REDUCTIONS)
"""Counters of TMA traffic. A GPU without these counters has no TMA."""
LEVEL_METRICS = {
    # An atomic reads and writes, as in all tables here. Reads by cp.async count as loads. TMA loads count all bytes
    # that are stored to shared memory, including the zeros beyond a tensor's bounds, which are not read from global
    # memory.
    "sectors": LevelMetrics(
        (f"{_L1}_ld.sum", f"{_L1}_atom.sum", f"{_L1}_red.sum", BULK_LOADS, BULK_REDUCTIONS),
        (f"{_L1}_st.sum", f"{_L1}_atom.sum", f"{_L1}_red.sum", BULK_STORES, BULK_REDUCTIONS),
        SECTOR_BYTES,
    ),
    # Spilled registers are included here, although no level above shows them. Reads are counted where they return to
    # L1: the counter of requests arriving at L2 (lts__t_sectors_srcunit_tex_op_read) lies behind a coalescer, which
    # merges equal reads of neighbouring SMs in flight, and so depends on timing and on the individual chip.
    "L2": LevelMetrics(
        ("l1tex__m_xbar2l1tex_read_sectors.sum",), ("lts__t_sectors_srcunit_tex_op_write.sum",), SECTOR_BYTES
    ),
    "DRAM": LevelMetrics(("dram__bytes_read.sum",), ("dram__bytes_write.sum",), 1),
}
"""Metric names as in Nsight Compute's documentation, for GPUs since Volta."""

TRAFFIC_METRICS = tuple(
    dict.fromkeys(name for level in LEVEL_METRICS.values() for name in (*level.read, *level.written))
)


class Replay(enum.Enum):
    """The scope of one set of counters. Values are those of ncu's `--replay-mode`."""

    LAUNCH = "kernel"
    """Each launch on its own, starting with empty caches."""
    PLAN = "app-range"
    """All launches of a plan together, starting with empty caches; the program runs once per pass."""


@dataclass(frozen=True)
class Counters:
    """The counters of one launch, or of one range of launches."""

    name: str
    """The kernel's name, as ncu writes it."""
    values: Mapping[str, float | None]
    """Values by metric, in base units (bytes, nanoseconds); None if this GPU or this ncu does not have the metric."""

    def total(self, metrics: Sequence[str]) -> int | None:
        """The sum of counts; None if one that the GPU should have is not known."""
        known = {**dict.fromkeys(SINCE_HOPPER, 0), **{name: x for name, x in self.values.items() if x is not None}}
        values = [known.get(metric) for metric in metrics]
        return None if None in values else sum(round(value) for value in values if value is not None)


def find_ncu() -> str | None:
    """Path of `ncu`: from PATH, or from a CUDA toolkit that NVIDIA's own search finds; None if it is not found."""
    found = shutil.which("ncu")
    if found is None:
        try:
            from cuda import pathfinder

            found = pathfinder.find_nvidia_binary_utility("ncu")
        except Exception:  # older versions of pathfinder do not find programs
            return None
    return found


def read_counters(
    program: Sequence[str], metrics: Sequence[str], *, replay: Replay = Replay.LAUNCH, folder: Path | None = None
) -> list[Counters]:
    """Run `program` (in `folder`) under ncu and return the counters of its profiled launches, in launch order.

    The program calls cudaProfilerStart and cudaProfilerStop around the profiled part. Metrics that are unknown here are
    None.

    Raises `CountersUnavailable` if ncu is missing, lacks permission, or fails, or if the program fails.
    """
    ncu = find_ncu()
    if ncu is None:
        raise CountersUnavailable("ncu (Nsight Compute) is not installed, or not on the PATH")
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "counters.csv")
        command = [ncu, "--csv", "--print-units", "base", "--log-file", str(log), "--clock-control", "none"]
        command += ["--cache-control", "all", "--replay-mode", replay.value, "--target-processes", "all"]
        if replay is Replay.LAUNCH:  # ranges begin with cudaProfilerStart in any case
            command += ["--profile-from-start", "off"]
        command += ["--metrics", ",".join(metrics), *program]
        # ncu takes a lock in TMPDIR, which another user's ncu may have left there.
        environment = {**os.environ, "TMPDIR": scratch}
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", check=False
            )
        except OSError as error:
            raise CountersUnavailable(f"{ncu} did not start: {error}") from error
        text = log.read_text(errors="replace") if log.exists() else ""
    if '"ID"' not in text:
        raise CountersUnavailable(_reason(f"{text}\n{done.stdout}\n{done.stderr}"))
    return parse_csv(text)


def parse_csv(text: str) -> list[Counters]:
    """Parse the CSV of ncu's page `details`, which has a line per launch and metric; preceding output is skipped."""
    rows: dict[int, tuple[str, dict[str, float | None]]] = {}
    for row in csv.DictReader(io.StringIO(text[text.index('"ID"') :])):
        if (row.get("ID") or "").isdigit():
            _, values = rows.setdefault(int(row["ID"]), (row["Kernel Name"], {}))
            values[row["Metric Name"]] = _number(row["Metric Value"])
    return [Counters(*rows[number]) for number in sorted(rows)]


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:  # "n/a"
        return None
    return int(value) if value.is_integer() else value


def _reason(output: str) -> str:
    """The reason for a failure, in one line of ncu's output."""
    if "ERR_NVGPUCTRPERM" in output:
        return (
            "ncu may not read this GPU's counters (ERR_NVGPUCTRPERM): run as root, or have the administrator set "
            "NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
        )
    errors = [line for line in output.splitlines() if line.startswith("==ERROR==")]
    lines = errors or [line for line in output.splitlines() if line.strip()] or ["it says nothing"]
    return f"ncu read no counters: {lines[0 if errors else -1].removeprefix('==ERROR==').strip()}"
