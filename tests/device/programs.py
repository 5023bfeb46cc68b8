"""Kernels in CUDA, Numba and PTX for the tests of the device."""

from __future__ import annotations

import functools
from typing import Any

import cupy
from numba import cuda, float32

SCALE = r"""
__device__ float factor[4] = {2, 3, 4, 5};
struct Pair { int first; float second; };
template <typename T> __global__ void scale(T* x, int n, T by)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * by;
}
extern "C" __global__ void by_factor(float* x, int which) { x[threadIdx.x] *= factor[which]; }
extern "C" __global__ void set_factor(int which, float value) { if (threadIdx.x == 0) factor[which] = value; }
extern "C" __global__ void of_pair(float* x, Pair pair) { x[threadIdx.x] = pair.first + pair.second; }
"""
MODULE = cupy.RawModule(
    code=SCALE, options=("--std=c++17",), name_expressions=("scale<float>", "scale<int>", "scale<double>")
)

REVERSE = cupy.RawKernel(
    r"""
extern "C" __global__ void reverse(float* x, int wait)
{
    extern __shared__ float part[];
    int i = threadIdx.x;
    part[i] = x[i];
    if (wait) __syncthreads();
    x[i] = part[blockDim.x - 1 - i];
}
""",
    "reverse",
)

ADD_ONE = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry add_one(.param .u64 values, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd0, [values];
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %tid.x;
    setp.ge.u32 %p, %r1, %r0;
    @%p bra DONE;
    mul.wide.u32 %rd1, %r1, 4;
    add.u64 %rd1, %rd0, %rd1;
    ld.global.u32 %r2, [%rd1];
    add.u32 %r2, %r2, 1;
    st.global.u32 [%rd1], %r2;
DONE:
    ret;
}
"""


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def transpose(x, out):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        out[j, i] = x[i, j]


def many_values_ptx(count: int, bounds: str = "") -> str:
    """PTX of a kernel `many_values` that needs `count` registers per thread for values that it loads and then stores.

    `bounds` is a directive such as `.maxntid 1024`.
    """
    lines = [
        *(f"ld.volatile.global.u32 %v{i}, [%base + {4 * i}];" for i in range(count)),
        *(f"st.volatile.global.u32 [%base + {4 * (count - 1 - i)}], %v{i};" for i in range(count)),
    ]
    return f"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry many_values(.param .u64 values) {bounds}
{{
    .reg .b32 %v<{count}>;
    .reg .b64 %base;
    ld.param.u64 %base, [values];
    {" ".join(lines)}
    ret;
}}
"""


@functools.cache
def transpose_of_tile(columns: int) -> Any:
    """A Numba kernel of one warp that loads column 0 of a tile in shared memory with rows of so many floats."""

    @cuda.jit
    def kernel(out):  # type: ignore[no-untyped-def]
        tile = cuda.shared.array((32, columns), float32)
        tile[0, cuda.threadIdx.x] = 1
        cuda.syncthreads()
        out[cuda.threadIdx.x] = tile[cuda.threadIdx.x, 0]

    return kernel
