"""Correct kernels have no findings; without one of their waits, they do."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.sanitized_kernel import find

X = np.arange(256, dtype=np.float32)
SILENT = {
    "a barrier on both sides": (
        """
    __shared__ float s[128];
    float total = 0;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
        s[t] = x[t + 128 * i];
        __syncthreads();
        total += s[127 - t];
        __syncthreads();
    }
    y[t] = total;
""",
        128,
    ),
    "double buffering with one barrier per step": (
        """
    __shared__ float s[2][64];
    float total = 0;
    s[0][t] = x[t];
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
        if (i < 3) s[(i + 1) & 1][t] = x[t + 64 * (i + 1)];
        total += s[i & 1][63 - t];
        __syncthreads();
    }
    y[t] = total;
""",
        64,
    ),
    "warp-synchronous reduction with __syncwarp": (
        """
    __shared__ float s[32];
    s[t] = x[t];
    __syncwarp();
    for (int d = 16; d > 0; d /= 2) {
        float v = s[t] + s[t ^ d];
        __syncwarp();
        s[t] = v;
        __syncwarp();
    }
    y[t] = s[t ^ 7];
""",
        32,
    ),
    "halves of a warp, each by itself, then both": (
        """
    __shared__ float s[32];
    s[t] = x[t];
    if (t < 16) { __syncwarp(0x0000ffff); y[t] = s[t ^ 1]; } else { __syncwarp(0xffff0000); y[t] = s[t ^ 1]; }
    __syncwarp();
    s[t] = y[31 - t];
""",
        32,
    ),
    "pairs, then pairs of pairs: knowledge is passed on": (
        """
    __shared__ float s[32];
    s[t] = x[t];
    __syncwarp(3u << (t & ~1));
    __syncwarp(5u << (t & ~3) << (t & 1));
    y[t] = s[t ^ 3];
""",
        32,
    ),
    "shared atomics": (
        """
    __shared__ float s[4];
    if (t < 4) s[t] = 0;
    __syncthreads();
    atomicAdd(&s[t & 3], x[t]);
    __syncthreads();
    y[t] = s[t & 3];
""",
        128,
    ),
    "global atomics from all blocks": ("atomicAdd(&y[t & 3], x[t]);", 64),
    "the same value from all lanes, warps and blocks": (
        "__shared__ int found; found = 1; __syncthreads(); if (found) y[0] = 2.f;",
        64,
    ),
    "named barriers for some of the warps": (
        """
    __shared__ float s[128];
    s[t] = x[t];
    asm volatile("bar.sync %0, 64;" ::"r"(1 + t / 64) : "memory");
    y[t] = s[t ^ 63];
""",
        128,
    ),
    "a producer and a consumer with bar.arrive": (
        """
    __shared__ float s[32];
    float total = 0;
#pragma unroll 1
    for (int i = 0; i < 3; ++i) {
        if (t < 32) {
            if (i) asm volatile("bar.sync 2, 64;" ::: "memory");
            s[t] = x[t + 32 * i];
            asm volatile("bar.arrive 1, 64;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            total += s[63 - t];
            if (i < 2) asm volatile("bar.arrive 2, 64;" ::: "memory");
        }
    }
    y[t] = total;
""",
        64,
    ),
    "a volatile flag between warps": (
        """
    __shared__ volatile int ready;
    __shared__ float s[32];
    if (t == 0) ready = 0;
    __syncthreads();
    if (t < 32) {
        while (!ready) {}
        __threadfence_block();
        y[t] = s[31 - t];
    } else {
        s[t - 32] = x[t];
        __threadfence_block();
        __syncwarp();
        ready = 1;
    }
""",
        64,
    ),
    "counted arrivals of warps on a shared counter": (
        """
    __shared__ unsigned count;
    __shared__ float s[96];
    if (t == 0) count = 0;
    __syncthreads();
    if (t >= 32) {
        s[t - 32] = x[t];
        __syncwarp();
        if (t % 32 == 0) atomicAdd(&count, 1u);
    } else {
        while (*(volatile unsigned*)&count < 3) {}
        y[t] = s[t] + s[t + 32] + s[t + 64];
    }
""",
        128,
    ),
    "a thread reads back what it wrote": (
        "float* mine = y + t + 64 * blockIdx.x; *mine = x[t]; __threadfence(); *mine = *mine + 1.f;",
        64,
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_correct_kernels_are_not_accused(name: str) -> None:
    body, threads = SILENT[name]
    source = f'extern "C" __global__ void k(const float* x, float* y) {{ int t = threadIdx.x; {body} }}'
    blocks = 3 if "block" in name else 1
    found = find(source, {"X": X, "Y": np.zeros_like(X)}, ("X", "Y"), grid=(blocks, 1, 1), block=(threads, 1, 1))
    assert found == (), [finding.message for finding in found]


def test_pairs_alone_do_not_know_other_pairs() -> None:
    body = SILENT["pairs, then pairs of pairs: knowledge is passed on"][0].replace("__syncwarp(3u << (t & ~1));", "")
    source = f'extern "C" __global__ void k(const float* x, float* y) {{ int t = threadIdx.x; {body} }}'
    (finding,) = find(source, {"X": X, "Y": np.zeros_like(X)}, ("X", "Y"))
    assert finding.kind == "RAW race"


def test_the_producer_that_does_not_wait() -> None:
    body = SILENT["a producer and a consumer with bar.arrive"][0]
    for wait in ('if (i) asm volatile("bar.sync 2, 64;" ::: "memory");', 'if (i < 2) asm volatile("bar.arrive 2, 64;"'):
        assert wait in body
    body = body.replace('if (i) asm volatile("bar.sync 2, 64;" ::: "memory");', "")
    body = body.replace('if (i < 2) asm volatile("bar.arrive 2, 64;" ::: "memory");', "")
    source = f'extern "C" __global__ void k(const float* x, float* y) {{ int t = threadIdx.x; {body} }}'
    # The consumer comes second each time here: the producer's next store then races with its load.
    kinds = {f.kind for f in find(source, {"X": X, "Y": np.zeros_like(X)}, ("X", "Y"), block=(64, 1, 1))}
    assert "WAW race" not in kinds and kinds & {"RAW race", "WAR race"}
