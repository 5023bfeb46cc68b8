"""Accesses outside of the array that they were meant for, within the block's shared memory; and none that is right."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda, float32

from tests.emulator.sanitized_kernel import find

X = np.arange(256, dtype=np.float32)
KIND = "outside its array"


def found(source: str, n: int = 0, shared_bytes: int = 0) -> list[tuple[int, str]]:
    """Line and message of each access outside of its array, by a kernel over `x`, `y` and `n` with `t` the thread."""
    kernel = f'extern "C" __global__ void k(const float* x, float* y, int n) {{\nint t = threadIdx.x;{source}}}'
    y = np.zeros(64, np.float32)
    findings = find(kernel, {"x": X, "y": y}, ("x", "y", np.int32(n)), block=(64, 1, 1), shared_bytes=shared_bytes)
    return [(f.place.line - 2, f.message) for f in findings if f.kind == KIND]


OVERRUNS = """
    __shared__ float first[4], scores[64], keys[64];
    keys[t] = scores[t] = x[t];
    if (t < 4) first[t] = 0;
    __syncthreads();
    if (t == 63) scores[t + n] = x[t];
    __syncthreads();
    if (t == 0) atomicAdd(&keys[t - n], 1.0f);
    __syncthreads();
    y[t] = scores[t + n] + keys[t] + first[t & 3];
"""


def test_each_access_outside_is_named_with_array_line_and_what_lies_there():
    outside = dict(found(OVERRUNS, 1))
    assert set(outside) == {5, 7, 9}
    assert "store of 4 bytes at byte offset 256 of shared memory scores, which has 256 bytes; that is at" in outside[5]
    assert "atomic of 4 bytes at byte offset -4 of shared memory keys, which has 256 bytes; that is at" in outside[7]
    assert "load of 4 bytes at byte offset 256 of shared memory scores" in outside[9]
    assert "thread (63, 0, 0)" in outside[5] and "planted.cu:7" in outside[5]


def test_the_same_kernel_that_stays_inside_has_no_finding():
    assert found(OVERRUNS, 0) == []


def test_dynamic_memory_that_is_left_at_its_beginning():
    source = """
    extern __shared__ float dynamic[];
    __shared__ float fixed[64];
    fixed[t] = x[t];
    dynamic[t] = x[t];
    __syncthreads();
    if (t == 0) dynamic[t - n] = 7.0f;
    __syncthreads();
    y[t] = fixed[t] + dynamic[t];
"""
    ((line, message),) = found(source, 1, shared_bytes=256)
    assert line == 6 and "at byte offset -4 of dynamic shared memory, before its beginning; that is at" in message
    assert found(source, 0, shared_bytes=256) == []


def test_an_asynchronous_copy_that_ends_in_another_array():
    source = """
    __shared__ __align__(16) float tile[64], next[64];
    next[t] = tile[t] = 0;
    __syncthreads();
    if (t < 16) {
        unsigned to = (unsigned)__cvta_generic_to_shared(&tile[4 * t + 4 * n]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(x + 4 * t));
        asm volatile("cp.async.wait_all;");
    }
    __syncthreads();
    y[t] = tile[t] + next[t];
"""
    ((_, message),) = found(source, 1)
    assert "of 16 bytes at byte offset 256 of shared memory tile, which has 256 bytes; that is at" in message
    assert found(source, 0) == []


RIGHT = """
    extern __shared__ __align__(128) float dynamic[];
    __shared__ __align__(16) float a[64], b[64];
    __shared__ struct { float head[3]; float tail[61]; } pair;
    float* parts = dynamic + 64;                  // several arrays of one piece of memory
    a[t] = x[t]; b[t] = x[t] + 1; dynamic[t] = x[t]; parts[t] = x[t] + 2;
    (&pair.head[0])[t] = x[t];                    // over a member's end, in one variable
    __syncthreads();
    float* chosen = (x[t] > 3.0f) ? a : b;        // either of two arrays
    float* kept[2] = {a, b};                      // addresses in memory
    float sum = chosen[t] + kept[n + (t & 1)][t];
    unsigned from = (unsigned)__cvta_generic_to_shared(a), to = (unsigned)__cvta_generic_to_shared(b);
    unsigned either = from ^ ((from ^ to) & -(unsigned)(t & 1));  // swizzled addresses
    unsigned apart = from + (to - from) * (t & 1);
    float u, v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(u) : "r"(either + 4 * t));
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(apart + 4 * t));
    float4 last = reinterpret_cast<float4*>(a)[15];
    unsigned swizzled = (unsigned)__cvta_generic_to_shared(dynamic) + (((t * 4) ^ ((t & 7) << 4)) & 255);
    float w;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(w) : "r"(swizzled));
    y[t] = sum + u + v + w + last.w + parts[t] + pair.tail[t % 61];
"""


def test_right_ways_to_reach_several_arrays_are_not_accused():
    assert found(RIGHT, 0, shared_bytes=512) == []


@cuda.jit
def one_more(x, y, n):
    scores = cuda.shared.array(64, float32)
    keys = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    keys[t] = x[t]
    scores[t] = x[t]
    cuda.syncthreads()
    scores[t + n] = x[t]  # outside
    cuda.syncthreads()
    y[t] = scores[t] + keys[t]


@pytest.mark.parametrize("n", [0, 1])
def test_arrays_of_numba(n: int):
    y = np.zeros(64, np.float32)
    findings = find(one_more, {"x": X[:64], "y": y}, ("x", "y", np.int32(n)), block=(64, 1, 1))
    outside = [finding for finding in findings if finding.kind == KIND]
    assert len(outside) == n
    if n:
        assert "at byte offset 256 of shared memory" in outside[0].message and outside[0].place.line > 0
