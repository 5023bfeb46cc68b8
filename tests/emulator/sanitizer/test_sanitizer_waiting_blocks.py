"""Blocks that wait for each other under the sanitizer: they take turns, and each keeps its own clocks.

Each kernel is right as it is; each replacement of some of its text makes a race, or leaves it right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from harness.support.errors import KernelFault
from tests.emulator.sanitized_kernel import find


@dataclass(frozen=True)
class Waiting:
    """A kernel whose blocks wait for others, and what replacements of its text lead to."""

    body: str
    cases: dict[tuple[str, str], str]
    """By replaced text and replacement: the objects with races, each with `:` and the initials of the races' kinds."""
    grid: int = 6
    block: int = 64


FENCE, NONE, IN_BLOCK = "__threadfence();", "", "__threadfence_block();"
RIGHT = ("", "")
KERNELS = {
    # Block number 0 runs last, so that all others wait.
    "look-back": Waiting(
        """
        int id = gridDim.x - 1 - b;
        __shared__ int before, sums[2];
        int sum = __reduce_add_sync(~0u, t);
        if (t % 32 == 0) sums[t / 32] = sum;
        __syncthreads();
        if (t == 0) {
            sum = sums[0] + sums[1];
            x[id] = sum; /* 1 */ __threadfence(); atomicExch(f + id, 1);
            int prefix = 0;
            for (int other = id - 1; other >= 0; --other) {
                int state;
                while (!(state = atomicAdd(f + other, 0)));
                if (state == 2) { prefix += y[other]; break; }
                prefix += x[other];
            }
            y[id] = prefix + sum; /* 2 */ __threadfence(); atomicExch(f + id, 2);
            before = prefix;
        }
        __syncthreads();
        z[64 * id + t] = before;""",
        {
            RIGHT: "",
            ("atomicAdd(f + other, 0)", "*(volatile int*)(f + other)"): "",
            ("atomicExch(f + id, 2)", "*(volatile int*)(f + id) = 2"): "",
            ("/* 1 */ __threadfence();", NONE): "x:R",
            ("/* 2 */ __threadfence();", NONE): "y:R",
            ("/* 1 */ __threadfence();", IN_BLOCK): "x:R",
            ("/* 2 */ __threadfence();", IN_BLOCK): "y:R",
            ("Exch(", "Exch_block("): "f:WA x:R y:R",
            ("Add(f", "Add_block(f"): "f:WA x:R y:R",
            ("while (!(state = atomicAdd(f + other, 0)));", "state = 1;"): "x:A",
        },
    ),
    # Block 0 holds the lock until all others have come to it.
    "lock": Waiting(
        """
        if (t) return;
        if (b) atomicAdd(f + 1, 1);
        while (atomicCAS(f, 0, 1));
        __threadfence(); // 1
        if (b == 0) while (atomicAdd(f + 1, 0) < gridDim.x - 1);
        x[0] += b;
        __threadfence(); // 2
        atomicExch(f, 0);""",
        {
            RIGHT: "",
            ("atomicExch(f, 0)", "*(volatile int*)f = 0"): "",
            ("__threadfence(); // 1", NONE): "x:RWA",
            ("__threadfence(); // 2", NONE): "x:RWA",
            ("__threadfence(); // 1", IN_BLOCK): "x:RWA",
            ("__threadfence(); // 2", IN_BLOCK): "x:RWA",
            ("CAS(", "CAS_block("): "f:WA x:RWA",
            ("atomicExch(f, 0)", "*f = 0"): "f:WA x:RWA",
        },
    ),
    "barrier of the grid": Waiting(
        """
        for (int round = 1; round <= 3; ++round) {
            x[64 * b + t] = round;
            __syncthreads(); // 1
            if (t == 0) {
                __threadfence(); // 2
                atomicAdd(f, 1);
                while (*(volatile int*)f < round * 2 * gridDim.x - gridDim.x);
                __threadfence();
            }
            __syncthreads(); // 3
            z[64 * b + t] = x[64 * (gridDim.x - 1 - b) + 63 - t];
            __syncthreads();
            if (t == 0) {
                __threadfence();
                atomicAdd(f, 1); // 4
                while (*(volatile int*)f < round * 2 * gridDim.x); // 4
            }
            __syncthreads();
        }""",
        {
            RIGHT: "",
            ("__syncthreads(); // 1", NONE): "x:RA",
            ("__threadfence(); // 2", NONE): "x:RA",
            ("__threadfence(); // 2", IN_BLOCK): "x:RA",
            ("__syncthreads(); // 3", NONE): "x:RA",
            ("while (*(volatile int*)f < round * 2 * gridDim.x); // 4", NONE): "x:RA",
        },
    ),
    # The last warp to come lets all others go on; warps of one block know each other's data only by way of it.
    "barrier of warps": Waiting(
        """
        x[64 * b + t] = t;
        __syncwarp();
        if (t % 32 == 0) {
            __threadfence(); // 1
            if (atomicAdd(f, 1) == 2 * gridDim.x - 1) {
                __threadfence(); // 2
                *(volatile int*)(f + 1) = 1;
            }
            while (!*(volatile int*)(f + 1));
        }
        __syncwarp(); // 3
        z[64 * b + t] = x[64 * b + 63 - t] + x[64 * (gridDim.x - 1 - b) + t];""",
        {
            RIGHT: "",
            ("__threadfence(); // 1", NONE): "x:R",
            ("__threadfence(); // 2", NONE): "x:R",
        },
    ),
    # Blocks add to one tile in a fixed order, as in stream-K.
    "semaphore": Waiting(
        """
        int seen;
        if (t == 0)
            do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(f) : "memory");
            while (seen != gridDim.x - 1 - b);
        __syncthreads(); // 1
        x[t] += b;
        __syncthreads(); // 2
        if (t == 0) asm volatile("red.release.gpu.global.add.s32 [%0], 1;" :: "l"(f) : "memory");""",
        {
            RIGHT: "",
            ("__syncthreads(); // 1", NONE): "x:RWA",
            ("__syncthreads(); // 2", NONE): "x:RWA",
            ("ld.acquire", "ld.relaxed"): "x:RWA",
            ("red.release", "red.relaxed"): "x:RWA",
            ("red.release.gpu", "red.release.cta"): "f:RWA x:RWA",
        },
    ),
    "messages": Waiting(
        """
        int seen;
        if (t) return;
        if (b == gridDim.x - 1) {
            x[0] = 1;
            asm volatile("st.release.gpu.global.s32 [%0], 1;" :: "l"(f) : "memory");
        } else {
            do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(f) : "memory"); while (!seen);
            z[b] = x[0];
        }""",
        {
            RIGHT: "",
            ("st.release", "st.relaxed"): "x:R",
            ("ld.acquire", "ld.relaxed"): "x:R",
            ("st.release.gpu", "st.release.cluster"): "f:RA x:R",
            ("ld.acquire.gpu", "ld.acquire.cta"): "f:RA x:R",
            ("ld.acquire.gpu", "ld.weak"): "f:RA x:R",
            ("ld.acquire.gpu", "ld.volatile"): "",
        },
    ),
    # Warp 1 of block 0 knows what warp 0 did only by way of block 1.
    "there and back": Waiting(
        """
        if (t == 0 && b == 0) { x[0] = 1; __threadfence(); atomicExch(f, 1); /* 1 */ }
        if (t == 0 && b == 1) {
            while (!atomicAdd(f, 0));
            __threadfence(); // 2
            atomicExch(f + 1, 1);
        }
        if (t == 32 && b == 0) { while (!atomicAdd(f + 1, 0)); z[0] = x[0]; }""",
        {
            RIGHT: "",
            ("__threadfence(); // 2", NONE): "x:R",
            ("while (!atomicAdd(f, 0));", NONE): "x:R",
            ("/* 1 */", "x[0] = 2;"): "x:R",
        },
        grid=2,
    ),
    # What warp 2 releases says nothing of warp 0, although its block waits for another.
    "bystander": Waiting(
        """
        if (b == 0) {
            if (t == 0) { x[0] = 1; /* 1 */ }
            if (t == 64) { while (!atomicAdd(f, 0)); __threadfence(); atomicExch(f + 1, 1); }
            if (t == 32) { while (!atomicAdd(f + 1, 0)); z[0] = x[0]; }
        } else if (t == 0) { x[1] = 1; __threadfence(); atomicExch(f, 1); }""",
        {RIGHT: "x:R", ("/* 1 */ }", "} __syncthreads();"): ""},
        grid=2,
        block=96,
    ),
}
INITIALS = {"RAW race": "R", "WAW race": "W", "WAR race": "A"}


def kernel(body: str) -> str:
    parameters = "int* f, int* x, int* y, int* z"
    return f'extern "C" __global__ void k({parameters}) {{ int t = threadIdx.x, b = blockIdx.x;{body} }}'


def races(body: str, grid: int, block: int, **options: object) -> dict[str, set[str]]:
    """The initials of the kinds of the races, by object."""
    arrays = {name: np.zeros(1024, np.int32) for name in "fxyz"}
    found: dict[str, set[str]] = {}
    launch = {"grid": (grid, 1, 1), "block": (block, 1, 1), **options}
    for finding in find(kernel(body), arrays, tuple(arrays), **launch):  # type: ignore[arg-type]
        found.setdefault(finding.target.removeprefix("buffer "), set()).add(INITIALS[finding.kind])
    return found


CASES = [(name, *case) for name, each in KERNELS.items() for case in each.cases]


@pytest.mark.parametrize(("name", "old", "new"), CASES, ids=[f"{n}: {a} -> {b}" if a else n for n, a, b in CASES])
def test_races_of_blocks_that_wait_for_each_other(name: str, old: str, new: str) -> None:
    waiting = KERNELS[name]
    assert old in waiting.body
    expected = {name: set(kinds) for name, _, kinds in (e.partition(":") for e in waiting.cases[old, new].split())}
    found = races(waiting.body.replace(old, new), waiting.grid, waiting.block)
    # One order of the blocks shows some of the races of a wrong kernel, and none of a right one.
    assert found.keys() == expected.keys() and all(kinds <= expected[name] for name, kinds in found.items()), found


@pytest.mark.parametrize("name", [name for name, each in KERNELS.items() if not each.cases[RIGHT]])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_right_kernels_are_right_in_any_order_of_blocks_and_warps(name: str, seed: int) -> None:
    waiting = KERNELS[name]
    assert races(waiting.body, waiting.grid, waiting.block, seed=seed, shuffle=True) == {}


CHAIN = """
        if (t) return;
        while (b < gridDim.x - 1 && !atomicAdd(f + b + 1, 0));
        atomicExch(f + b, 1);"""
"""Each block waits for the next one."""


def test_blocks_that_wait_for_one_that_has_no_room_are_named_with_their_lines() -> None:
    body = CHAIN.replace("\n", "\n// line\n")
    assert races(body, 6, 32, resident=lambda: 6) == {}
    words = (
        r"5 blocks wait in loops, and none makes progress \(blocks \(0, 0, 0\), .*\(4, 0, 0\) at .*planted.cu:5 .*\); "
        "the other 1 cannot start before one of them ends, because the GPU is full"
    )
    with pytest.raises(KernelFault, match=words):
        races(body, 6, 32, resident=lambda: 5, step_limit=1_000_000)


def test_in_a_random_order_of_blocks_there_is_room_for_those_that_others_wait_for() -> None:
    """A GPU starts blocks in ascending order, in which these do not need each other."""
    assert races(CHAIN.replace("b + 1", "b - 1").replace("b < gridDim.x - 1", "b"), 12, 32, resident=lambda: 2) == {}
    launch = {"resident": lambda: 2, "step_limit": 1_000_000, "seed": 4, "shuffle": True}
    assert races(CHAIN.replace("b + 1", "b - 1").replace("b < gridDim.x - 1", "b"), 12, 32, **launch) == {}
