"""Step 8: coalesced loads of four floats each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import Figure, Lesson, Prediction, Problem, Traffic
from variants._path import F32, HEAD_DIM, cuda_kernels, one_head, small
from variants._path.step_07_loop_order import BR, NUMERICS, plan
from variants._path.step_08_coalescing.task import TASK


def numba_kernels() -> tuple[Any, ...]:
    from variants._path.step_08_coalescing.kernel_numba import KERNELS

    return KERNELS


def claim(p: Problem) -> Traffic:
    """Each block reads all of K and V; Q is read and O is written once."""
    row, blocks = HEAD_DIM * F32, -(-p.q_len // BR)
    return Traffic(read_bytes=(p.q_len + blocks * 2 * p.kv_len) * row, write_bytes=p.q_len * row)


LESSON = Lesson(
    number="8",
    name="coalescing",
    title="Coalesced loads",
    idea="neighbouring lanes load neighbouring elements, four at a time",
    folder=Path(__file__).parent,
    problem=small(256),
    cuda=cuda_kernels("attention"),
    numba=numba_kernels,
    plan=plan,
    claim=claim,
    supports=one_head,
    prediction=Prediction(
        question="In step 7, the 32 lanes of a warp ask for 32 floats of K that are a row (128 bytes) apart: 32 "
        "sectors per request. In step 8, each lane asks for 16 bytes, and eight neighbouring lanes share a row. How "
        "many sectors of K does a request touch?",
        figure=Figure(name="sectors per request of K", kind="sectors_per_request", buffer="K"),
        because="32 lanes x 16 bytes = 512 bytes: four whole rows of 128 bytes, one after the other. A sector has 32 "
        "bytes, so these are 16 sectors, and every byte of them is used.",
        tolerance=0.0,
        slips=(
            (32, "A lane's 16 bytes are half a sector; its neighbour uses the other half."),
            (4, "That holds for 4 bytes per lane. Here each lane asks for 16."),
            (1, "A sector has 32 bytes; the request asks for 512."),
            (8, "The warp reads four rows of 128 bytes, which have four sectors each."),
        ),
    ),
    task=TASK,
    follows="7",
    figures=(
        Figure(name="bytes of K", kind="bytes", unit="bytes", buffer="K"),
        Figure(name="requests of K", kind="requests", buffer="K"),
        Figure(name="bytes of K that were asked for", kind="requested_bytes", unit="bytes", buffer="K"),
        Figure(name="instructions of all warps", kind="instructions"),
    ),
    numerics=NUMERICS,
)
