"""What tests of the command line call it with, and what a call leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from harness.model.operation import draw_inputs
from harness.operations.attention.problem import Problem

ROOT = Path(__file__).resolve().parents[2]
RIGHT = str(ROOT / "tests" / "plugins" / "one_thread_per_row.py")
BROKEN = str(ROOT / "tests" / "plugins" / "broken_kernels.py")
WRONG_CLAIM = str(ROOT / "tests" / "plugins" / "wrong_claim.py")
NAME = "one-thread-per-row"
SMALL = ["--seq-len", "20", "--head-dim", "8", "--device", "emulator"]


class Called:
    """What one command left behind."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


def harness(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command line in a process of its own."""
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300, **options)


def arrays(folder: Path, problem: Problem, single_head: bool = False) -> dict[str, np.ndarray]:
    inputs = draw_inputs(problem, "normal", 1)
    for name, array in inputs.items():
        np.save(folder / f"{name.lower()}.npy", array[0, 0] if single_head else array)
    return inputs


def run_arguments(folder: Path, **changed: object) -> list[str]:
    paths = {name: folder / f"{name}.npy" for name in ("q", "k", "v", "out")} | changed
    return [
        "run",
        NAME,
        "--plugin",
        RIGHT,
        "--device",
        "emulator",
        *(x for n, p in paths.items() for x in (f"--{n}", str(p))),
    ]
