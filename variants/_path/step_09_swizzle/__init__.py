"""Step 9: a swizzle, so that shared memory serves all lanes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import Figure, Lesson, Prediction
from variants._path import cuda_kernels, one_head, small
from variants._path.step_07_loop_order import NUMERICS, plan
from variants._path.step_08_coalescing import claim
from variants._path.step_09_swizzle.task import TASK


def numba_kernels() -> tuple[Any, ...]:
    from variants._path.step_09_swizzle.kernel_numba import KERNELS

    return KERNELS


LESSON = Lesson(
    number="9",
    name="swizzle",
    title="Bank conflicts and a swizzle",
    idea="elements of a tile change places within their rows, so that lanes ask different banks",
    folder=Path(__file__).parent,
    problem=small(256),
    cuda=cuda_kernels("attention"),
    numba=numba_kernels,
    plan=plan,
    claim=claim,
    supports=one_head,
    prediction=Prediction(
        question="In step 8, K_tile[lane][c] asks one bank for 32 different rows: 32 wavefronts where 1 would do. How "
        "many times the fewest possible wavefronts does the worst line of step 9 need?",
        figure=Figure(name="wavefronts / fewest possible, worst line", kind="ways"),
        because="Eight lanes at a time read 16 bytes each from eight rows. The swizzle puts these at eight different "
        "places of the 128 bytes that the 32 banks deliver at once. No lane waits for another one: 1.",
        tolerance=0.0,
        slips=(
            (32, "That is step 8, before the swizzle."),
            (8, "That is what float4 without a swizzle needs: eight lanes ask the same four banks."),
            (4, "A float4 for each of 32 lanes needs 4 wavefronts at best; the question is how many times that."),
            (0, "Wavefronts without conflicts are counted, too: the answer is at least 1."),
        ),
    ),
    task=TASK,
    follows="8",
    figures=(
        Figure(name="wavefronts of shared memory", kind="wavefronts"),
        Figure(name="of these, bank conflicts", kind="conflicts"),
        Figure(name="requests of shared memory", kind="shared_requests"),
        Figure(name="bytes of K", kind="bytes", unit="bytes", buffer="K"),
    ),
    picture="banks",
    numerics=NUMERICS,
)
