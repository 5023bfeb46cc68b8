"""CUDA kernels with `tcgen05` on the emulator, over named arrays: a head of device functions, and how to run them."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator.launch.kernel_launch import LaunchCounts
from harness.model.finding import Finding
from tests.emulator import cuda_kernel, sanitized_kernel
from tests.emulator.hopper_kernel import HEAD as HOPPER_HEAD

HEAD = (
    HOPPER_HEAD
    + """
#define ALLOC(G, to, columns) asm volatile("tcgen05.alloc.cta_group::" #G ".sync.aligned.shared::cta.b32 [%0], %1;" \\
  ::"r"(place_of(to)), "r"(columns) : "memory")
#define DEALLOC(G, at, columns) asm volatile("tcgen05.dealloc.cta_group::" #G ".sync.aligned.b32 %0, %1;" \\
  ::"r"(at), "r"(columns) : "memory")
#define RELINQUISH(G) asm volatile("tcgen05.relinquish_alloc_permit.cta_group::" #G ".sync.aligned;" ::: "memory")
#define TRACK(G, bar) \\
  asm volatile("tcgen05.commit.cta_group::" #G ".mbarrier::arrive::one.shared::cluster.b64 [%0];" \\
  ::"r"(place_of(bar)) : "memory")
#define TRACK_IN(G, bar, mask) asm volatile( \\
  "tcgen05.commit.cta_group::" #G ".mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" \\
  ::"r"(place_of(bar)), "h"((unsigned short)(mask)) : "memory")
#define BEFORE() asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory")
#define AFTER() asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory")
#define LOADED() asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory")
#define WRITTEN() asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory")
#define TO_ASYNC() asm volatile("fence.proxy.async;" ::: "memory")
#define MEET() asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory")
#define MMA(G, kind, d, a, b, form, adds) asm volatile("{\\n.reg .pred p;\\nsetp.ne.u32 p, %4, 0;\\n" \\
  "tcgen05.mma.cta_group::" #G ".kind::" #kind " [%0], %1, %2, %3, p;\\n}" \\
  ::"r"(d), "l"(a), "l"(b), "r"(form), "r"((u32)(adds)) : "memory")
__device__ u32 rank_in_cluster() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ u32 elected() {
  u32 is;
  asm volatile("{\\n.reg .pred p;\\nelect.sync _|p, 0xffffffff;\\nselp.u32 %0, 1, 0, p;\\n}" : "=r"(is));
  return is;
}
__device__ u32 load1(u32 at) {
  u32 r;
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(r) : "r"(at) : "memory");
  return r;
}
__device__ void store1(u32 at, u32 r) {
  asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" ::"r"(at), "r"(r) : "memory");
}
"""
)

ARCH = "sm_100"
FILE = "planted.cu"


def _kernel(body: str, name: str = "k") -> Any:
    import cupy

    return cupy.RawKernel(f'{HEAD}\n#line 1 "{FILE}"\n{body}', name, options=("-arch=sm_100a",))


def run_blackwell(
    body: str, arrays: dict[str, np.ndarray], args: tuple[Any, ...], **launch: Any
) -> tuple[dict[str, np.ndarray], LaunchCounts]:
    """Run the kernel `k` of a source that follows `HEAD`; its first line is planted.cu:1."""
    return cuda_kernel.run(_kernel(body), arrays, args, arch=ARCH, **launch)


def find_blackwell(
    body: str, arrays: dict[str, np.ndarray], args: tuple[Any, ...], **launch: Any
) -> tuple[Finding, ...]:
    """The findings of the sanitizer about the same kernel."""
    return sanitized_kernel.find(_kernel(body), arrays, args, arch=ARCH, **launch)


def moved(direction: str, shape: str, repeats: int, registers: int, packed: bool = False, split: int = 0) -> str:
    """A statement: `tcgen05.ld` or `tcgen05.st` of the array `r` at the address `at`."""
    pack = {"ld": ".pack::16b", "st": ".unpack::16b"}[direction] if packed else ""
    head = f"tcgen05.{direction}.sync.aligned.{shape}.x{repeats}{pack}.b32"
    distance = f", {split}" if shape == "16x32bx2" else ""
    if direction == "ld":
        names = ", ".join(f"%{i}" for i in range(registers))
        outs = ", ".join(f'"=r"(r[{i}])' for i in range(registers))
        return f'asm volatile("{head} {{{names}}}, [%{registers}]{distance};" : {outs} : "r"(at) : "memory");'
    names = ", ".join(f"%{i + 1}" for i in range(registers))
    ins = ", ".join(f'"r"(r[{i}])' for i in range(registers))
    return f'asm volatile("{head} [%0]{distance}, {{{names}}};" :: "r"(at), {ins} : "memory");'


WHOLE_MEMORY = f"""
__device__ void fill(u32 base, const u32* from) {{
  u32 lane = threadIdx.x % 128, r[16], at = base + (lane / 32 << 21);
  for (int c = 0; c < 512; c += 16, at += 16) {{
    for (int i = 0; i < 16; ++i) r[i] = from[512 * lane + c + i];
    {moved("st", "32x32b", 16, 16)}
  }}
  WRITTEN();
}}
__device__ void dump(u32 base, u32* to) {{
  u32 lane = threadIdx.x % 128, r[16], at = base + (lane / 32 << 21);
  for (int c = 0; c < 512; c += 16, at += 16) {{
    {moved("ld", "32x32b", 16, 16)}
    LOADED();
    for (int i = 0; i < 16; ++i) to[512 * lane + c + i] = r[i];
  }}
}}
"""
"""Functions of 128 threads that write or read all of a block's tensor memory, as (128, 512) words."""
