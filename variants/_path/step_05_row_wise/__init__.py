"""Step 5: one pass: O is corrected, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import Lesson, Prediction, Problem, Traffic
from variants._path import cuda_kernels, one_head, small
from variants._path.plans import BYTES, BYTES_OF_K, BYTES_OF_V, EXPONENTIALS, NUMERICS, ROW, SCRATCH, one_kernel
from variants._path.step_05_row_wise.task import TASK


def numba_kernels() -> tuple[Any, ...]:
    from variants._path.step_05_row_wise.kernel_numba import KERNELS

    return KERNELS


def claim(p: Problem) -> Traffic:
    """Each row reads its row of Q, K and V, and writes its row of O."""
    return Traffic(read_bytes=p.q_len * (ROW + 2 * p.kv_len * ROW), write_bytes=p.q_len * ROW)


LESSON = Lesson(
    number="5",
    follows="4",
    name="row-wise",
    title="One pass: O is corrected, too",
    idea="the output is summed in the same pass, and corrected whenever the maximum grows",
    folder=Path(__file__).parent,
    problem=small(256),
    cuda=cuda_kernels("attention"),
    numba=numba_kernels,
    plan=one_kernel,
    claim=claim,
    supports=one_head,
    prediction=Prediction(
        question="Q, K, V and O have 32,768 bytes each: 131,072 bytes would do if each were moved once. How many bytes "
        "does this kernel move in all?",
        figure=BYTES,
        because="Q is read and O is written once: 65,536 bytes. But each of the 256 rows reads all of K and V: 256 x "
        "65,536 = 16,777,216 bytes. That is 128 times as much as necessary. Tiles, in step 6, change this.",
        tolerance=0.001,
        slips=(
            (131_072, "That would need K and V to be read once for all rows. Here, every row reads them."),
            (25_231_360, "That is step 4. This step has no second pass over K."),
            (16_777_216, "Add Q and O."),
        ),
    ),
    task=TASK,
    figures=(BYTES_OF_K, BYTES_OF_V, SCRATCH, EXPONENTIALS),
    explains_time=False,
    numerics=NUMERICS,
)
