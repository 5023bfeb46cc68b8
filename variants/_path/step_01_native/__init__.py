"""Step 1: attention by its definition, in three kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import Figure, Lesson, Prediction, Problem, Traffic
from variants._path import F32, cuda_kernels, one_head, small
from variants._path.plans import BYTES_OF_S, LAUNCHES, NUMERICS, ROW, SCRATCH, three_kernels
from variants._path.step_01_native.task import TASK


def numba_kernels() -> tuple[Any, ...]:
    from variants._path.step_01_native.kernel_numba import KERNELS

    return KERNELS


def claim(p: Problem) -> Traffic | None:
    """Each row reads its row of Q, all of K and V, and S three times; S is written twice and O once."""
    if p.kv_len % 8:
        return None  # rows of S share sectors
    S = p.kv_len * F32
    return Traffic(read_bytes=p.q_len * (ROW + 2 * p.kv_len * ROW + 3 * S), write_bytes=p.q_len * (ROW + 2 * S))


LESSON = Lesson(
    number="1",
    name="native",
    title="The definition in three kernels",
    idea="one kernel each for S = QK^T, the softmax and PV, with S in memory between them",
    folder=Path(__file__).parent,
    problem=small(256),
    cuda=cuda_kernels("scores", "softmax", "output"),
    numba=numba_kernels,
    plan=three_kernels,
    claim=claim,
    supports=one_head,
    prediction=Prediction(
        question="S has 256 x 256 floats, which is 262,144 bytes. How many bytes of S and P do the three kernels move?",
        figure=BYTES_OF_S,
        because="`scores` writes S once. `softmax` reads it twice, once for the sum and once for the weights, and "
        "writes P in its place. `output` reads P. All of S is moved five times: 5 x 262,144 = 1,310,720 bytes.",
        tolerance=0.0,
        slips=(
            (4 * 262_144, "S would be moved four times if `softmax` read it once. This one reads it a second time."),
            (2 * 262_144, "Count every read and every write of S and P, in all three kernels."),
            (262_144, "That is the size of S. It is written and read several times."),
        ),
    ),
    task=TASK,
    figures=(
        Figure(name="bytes of Q, K, V and O", kind="bytes_of_tensors", unit="bytes"),
        SCRATCH,
        LAUNCHES,
    ),
    numerics=NUMERICS,
    fails_in=("hot", "overflow", "negative", "far-negative", "subnormal"),
)
