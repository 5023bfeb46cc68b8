"""CUDA kernels with Blackwell's tensor cores on the emulator, over named arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator.launch.kernel_launch import LaunchCounts
from tests.emulator.cuda_kernel import run
from tests.emulator.hopper_kernel import HEAD

WAY = """
__device__ void alloc(u32* place, u32 columns) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;"
    ::"r"(place_of(place)), "r"(columns) : "memory");
}
__device__ void dealloc(u32 address, u32 columns) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns) : "memory");
}
__device__ void mma_f16(u32 d, u64 a, u64 b, u32 descriptor, u32 adds) {
  asm volatile("{\\n.reg .pred p;\\nsetp.ne.u32 p, %4, 0;\\n"
    "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\\n}"
    ::"r"(d), "l"(a), "l"(b), "r"(descriptor), "r"(adds) : "memory");
}
__device__ void mma_f16_ts(u32 d, u32 a, u64 b, u32 descriptor, u32 adds) {
  asm volatile("{\\n.reg .pred p;\\nsetp.ne.u32 p, %4, 0;\\n"
    "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;\\n}"
    ::"r"(d), "r"(a), "l"(b), "r"(descriptor), "r"(adds) : "memory");
}
__device__ void commit(u64* bar) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];"
    ::"r"(place_of(bar)) : "memory");
}
__device__ u32 load_cell(u32 address) {
  u32 value;
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ void store_cell(u32 address, u32 value) {
  asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" ::"r"(address), "r"(value) : "memory");
}
#define WAIT_LD() asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory")
#define WAIT_ST() asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory")
#define BEFORE() asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory")
#define AFTER() asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory")
#define PROXY() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
"""


def run_blackwell(
    body: str, arrays: dict[str, np.ndarray], args: tuple[Any, ...], **launch: Any
) -> tuple[dict[str, np.ndarray], LaunchCounts]:
    """Run the kernel `k` of a source that follows `WAY`; its first line is planted.cu:1."""
    import cupy

    kernel = cupy.RawKernel(f'{HEAD}{WAY}\n#line 1 "planted.cu"\n{body}', "k", options=("-arch=sm_100a",))
    return run(kernel, arrays, args, arch="sm_100", **launch)
