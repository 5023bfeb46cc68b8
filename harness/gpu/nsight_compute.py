"""The GPU's own counters, through Nsight Compute's command line `ncu`: the one place that starts it and reads it.

`ncu` itself, and not the package nsight-python: that starts the caller's script again for each of its passes, wants a
single kernel per annotation or adds the kernels of one up, and brings pandas along. Here a plan has several launches,
each to be seen on its own, and CSV is all that is needed of the tool.

What is measured (Nsight Compute, Kernel Profiling Guide, sections "Replay" and "Cache Control"): a kernel is run as
often as its counters need passes, each time from the same memory and, with `--cache-control all`, from empty caches. So
each launch of a plan is seen as if it had the GPU to itself: what the launch before it left in L2 is read from DRAM
again. `Replay.PLAN` measures the launches of a plan as one range instead, from empty caches to its end. Either way
lines that were written and still lie in L2 at the end have not reached DRAM: judge writes at L2.

Clocks are left as they are.
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

SECTOR_BYTES = 32


@dataclass(frozen=True)
class LevelMetrics:
    """The counters of one level of memory; those of a direction are added up."""

    read: tuple[str, ...]
    written: tuple[str, ...]
    unit_bytes: int
    """Bytes per count."""


_L1 = "l1tex__t_sectors_pipe_lsu_mem_global_op"
BULK_LOADS = "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum"
BULK_STORES = "l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum"
BULK_REDUCTIONS = "l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_red.sum"
SINCE_HOPPER = (BULK_LOADS, BULK_STORES, BULK_REDUCTIONS)
"""What TMA moves. A GPU without these counters has nothing to count by them."""
LEVEL_METRICS = {
    # An atomic reads and writes, as in all tables here. What cp.async reads is among the loads. Of boxes that TMA loads
    # all is counted that lands in shared memory: zeros beyond a tensor's end, too, which are read nowhere.
    "sectors": LevelMetrics(
        (f"{_L1}_ld.sum", f"{_L1}_atom.sum", f"{_L1}_red.sum", BULK_LOADS, BULK_REDUCTIONS),
        (f"{_L1}_st.sum", f"{_L1}_atom.sum", f"{_L1}_red.sum", BULK_STORES, BULK_REDUCTIONS),
        SECTOR_BYTES,
    ),
    # Spilled registers pass here too, which no level above shows. Reads are what comes back to L1: the counter of what
    # arrives at L2 (lts__t_sectors_srcunit_tex_op_read) is taken behind a coalescer, which merges equal reads of
    # neighbouring SMs that are on their way at the same time, and so depends on timing and on the very chip.
    "L2": LevelMetrics(
        ("l1tex__m_xbar2l1tex_read_sectors.sum",), ("lts__t_sectors_srcunit_tex_op_write.sum",), SECTOR_BYTES
    ),
    "DRAM": LevelMetrics(("dram__bytes_read.sum",), ("dram__bytes_write.sum",), 1),
}
"""Names as in Nsight Compute's documentation, for GPUs since Volta."""

TRAFFIC_METRICS = tuple(
    dict.fromkeys(name for level in LEVEL_METRICS.values() for name in (*level.read, *level.written))
)


class Replay(enum.Enum):
    """What one set of counters is about: the value is ncu's `--replay-mode`."""

    LAUNCH = "kernel"
    """Each launch, from empty caches."""
    PLAN = "app-range"
    """All launches of a plan together, from empty caches before the first; the program runs once per pass."""


@dataclass(frozen=True)
class Counters:
    """The counters of one launch, or of one range of launches."""

    name: str
    """The kernel's, as ncu writes it."""
    values: Mapping[str, float | None]
    """Metric -> value in base units (bytes, nanoseconds); None where this GPU or this ncu does not have it."""

    def total(self, metrics: Sequence[str]) -> int | None:
        """The sum of counts; None where one is not known that the GPU should have."""
        known = {**dict.fromkeys(SINCE_HOPPER, 0), **{name: x for name, x in self.values.items() if x is not None}}
        values = [known.get(metric) for metric in metrics]
        return None if None in values else sum(round(value) for value in values if value is not None)


def find_ncu() -> str | None:
    """Where `ncu` is: on the PATH, or in a CUDA toolkit that NVIDIA's own search finds. None where it is not."""
    found = shutil.which("ncu")
    if found is None:
        try:
            from cuda import pathfinder

            found = pathfinder.find_nvidia_binary_utility("ncu")
        except Exception:  # an older pathfinder does not look for programs
            return None
    return found


def read_counters(
    program: Sequence[str], metrics: Sequence[str], *, replay: Replay = Replay.LAUNCH, folder: Path | None = None
) -> list[Counters]:
    """Run `program` (in `folder`) under ncu; the counters of all that it shows to profilers, in the order of launching.

    The program calls cudaProfilerStart and cudaProfilerStop around what counts. Metrics unknown here are None.

    Raises `CountersUnavailable` where ncu is missing, has no permission, or fails; and where the program does.
    """
    ncu = find_ncu()
    if ncu is None:
        raise CountersUnavailable("ncu (Nsight Compute) is not installed, or not on the PATH")
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "counters.csv")
        command = [ncu, "--csv", "--print-units", "base", "--log-file", str(log), "--clock-control", "none"]
        command += ["--cache-control", "all", "--replay-mode", replay.value, "--target-processes", "all"]
        if replay is Replay.LAUNCH:  # ranges begin with cudaProfilerStart anyway
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
    """The CSV of ncu's page `details`, a line per launch and metric; what ncu says before it is passed over."""
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
    """One line of what ncu printed."""
    if "ERR_NVGPUCTRPERM" in output:
        return (
            "ncu may not read this GPU's counters (ERR_NVGPUCTRPERM): run as root, or have the administrator set "
            "NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
        )
    errors = [line for line in output.splitlines() if line.startswith("==ERROR==")]
    lines = errors or [line for line in output.splitlines() if line.strip()] or ["it says nothing"]
    return f"ncu read no counters: {lines[0 if errors else -1].removeprefix('==ERROR==').strip()}"
