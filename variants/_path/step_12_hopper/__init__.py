"""Step 12: FlashAttention-3: a producer and consumers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import Figure, Launch, Lesson, Plan, Prediction, Problem, Traffic
from variants._path import cuda_kernels
from variants._path.halves import ROW_BYTES, SECTOR_BYTES, one_head_of_halves, sizes, small_halves, tile_map
from variants._path.step_10_tensor_cores import NUMERICS
from variants._path.step_12_hopper.task import TASK

BR, BC = 64, 32
WARPS = 5


def numba_kernels() -> tuple[Any, ...]:
    from variants._path.step_12_hopper.kernel_numba import KERNELS

    return KERNELS


def plan(p: Problem, kernels: tuple[Any, ...]) -> Plan:
    (attention,) = kernels
    maps = tile_map("Q", p.q_len, BR), tile_map("K", p.kv_len, BC), tile_map("V", p.kv_len, BC)
    return Plan((Launch(attention, (-(-p.q_len // BR),), (32, WARPS), (*maps, "O", *sizes(p))),))


def claim(p: Problem) -> Traffic:
    """Each block reads all of K and V in whole tiles; rows that do not exist arrive as zeros, and count as well."""
    blocks, tiles = -(-p.q_len // BR), -(-p.kv_len // BC)
    return Traffic(
        read_bytes=blocks * (BR + 2 * tiles * BC) * ROW_BYTES,
        write_bytes=p.q_len * ROW_BYTES // 16 * SECTOR_BYTES,
    )


LESSON = Lesson(
    number="12",
    name="hopper",
    title="TMA, mbarriers and wgmma: FlashAttention-3",
    idea="one warp copies whole tiles, four warps multiply them, and barriers count what has arrived",
    folder=Path(__file__).parent,
    problem=small_halves(256),
    cuda=cuda_kernels("attention", options=("-arch=sm_90a",)),
    numba=numba_kernels,
    plan=plan,
    claim=claim,
    supports=one_head_of_halves,
    prediction=Prediction(
        question="Step 11 executes 2,048 mma for 4 blocks and 8 tiles of keys. A wgmma multiplies 64 x 16 by 16 x 32 "
        "elements, and is counted once for each of the four warps that execute it. How many do all warps execute?",
        figure=Figure(name="mma or wgmma", kind="tensor_instructions"),
        because="For each block and tile, S is a sum over two pieces of 16 elements, and O over two pieces of 16 keys: "
        "4 wgmma by 4 warps, 16. 4 blocks x 8 tiles x 16 = 512: a quarter of step 11, whose mma has 8 columns instead "
        "of 32.",
        tolerance=0.0,
        slips=(
            (128, "A wgmma is counted once for each of its four warps."),
            (256, "There are two products, S = Q K^T and O = O + P V."),
            (2_048, "A wgmma multiplies four times as many columns as an mma."),
        ),
    ),
    task=TASK,
    follows="11",
    figures=(
        Figure(name="instructions of all warps", kind="instructions"),
        Figure(name="requests of shared memory", kind="shared_requests"),
        Figure(name="bytes of K", kind="bytes", unit="bytes", buffer="K"),
        Figure(name="barriers that all threads wait at", kind="barriers"),
    ),
    picture="timeline",
    arch="sm_90a",
    numerics=NUMERICS,
)
