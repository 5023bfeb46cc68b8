"""Rows: what the softmax algorithms have in common. A block of threads has one row and reads it in one or more sweeps.

Thread t takes columns t, t + 128, ...: a warp loads 32 consecutive elements at a time, whatever the length of the row
and wherever it begins, so a sweep moves a row as one run (see _tiles/sectors.py). Wider loads would need rows that
begin at multiples of their width. rows.cuh (CUDA) and numba_rows.py (Numba) have what the kernels share.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from harness import Launch, Numerics, Plan, Registry, SoftmaxProblem, Traffic, Variant
from variants._tiles.sectors import run_bytes

THREADS = 128
MOST_COLUMNS = 2**31 - 1 - THREADS
"""Columns are counted in 32 bits, up to one step beyond the last."""

Kernel = Callable[[SoftmaxProblem], Any]
"""Returns the algorithm's kernel in one language."""


def register_sweeps(
    registry: Registry,
    algorithm: str,
    idea: str,
    languages: Mapping[str, Kernel],
    sweeps: int,
    numerics: Numerics,
    fails_in: tuple[str, ...] = (),
) -> None:
    """Add `<algorithm>-<language>` for each of `languages`, which are the variants' backends.

    `sweeps`: how often it reads X.
    """
    for language, kernel in languages.items():
        registry.add(
            Variant(
                name=f"{algorithm}-{language}",
                operation="softmax",
                algorithm=algorithm,
                backend=language,
                idea=idea,
                # Partial functions of this module's, not closures: they can be sent to worker processes.
                plan=functools.partial(_plan, kernel),
                supports=_unsupported,
                claim=functools.partial(_claim, sweeps),
                fails_in=fails_in,
                numerics=numerics,
            )
        )


def _plan(kernel: Kernel, problem: SoftmaxProblem) -> Plan:
    """One launch, a block per row."""
    args = ("X", "Y", np.int32(problem.columns))
    return Plan(launches=(Launch(kernel(problem), (problem.rows,), (THREADS,), args),))


def _claim(sweeps: int, problem: SoftmaxProblem) -> Traffic:
    """`sweeps` times X, and Y once; every row is a run."""
    first = np.arange(problem.rows, dtype=np.int64) * problem.columns
    matrix_bytes = int(run_bytes(first, problem.columns, problem.itemsize_bytes).sum())
    return Traffic(read_bytes=sweeps * matrix_bytes, write_bytes=matrix_bytes)


def _unsupported(problem: SoftmaxProblem) -> str | None:
    if problem.columns > MOST_COLUMNS:
        return f"columns is {problem.columns}; kernels here count up to {MOST_COLUMNS:,}"
    return None
