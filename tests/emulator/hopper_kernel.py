"""CUDA kernels with Hopper's asynchronous instructions on the emulator, over named arrays and tensor maps of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator.abi import layout as at
from harness.emulator.launch.kernel_launch import LaunchCounts
from harness.emulator.launch.tensor_maps import encode
from harness.model.tensor_map import TensorMap
from tests.emulator.cuda_kernel import run

HEAD = """
typedef unsigned long long u64;
typedef unsigned int u32;
struct __align__(64) Map { u64 words[16]; };
__device__ u32 place_of(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ void init(u64* bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(place_of(bar)), "r"(count) : "memory");
}
__device__ void arrive(u64* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(place_of(bar)) : "memory");
}
__device__ void expect(u64* bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place_of(bar)), "r"(bytes) : "memory");
}
__device__ void wait(u64* bar, u32 parity) {
  asm volatile(
    "{\\n.reg .pred p;\\n"
    "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\\n@p bra over;\\nbra again;\\nover:\\n}"
    ::"r"(place_of(bar)), "r"(parity) : "memory");
}
__device__ u32 look(u64* bar, u32 parity) {
  u32 is_over;
  asm volatile("{\\n.reg .pred p;\\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\\nselp.u32 %0, 1, 0, p;\\n}"
    : "=r"(is_over) : "r"(place_of(bar)), "r"(parity) : "memory");
  return is_over;
}
__device__ void load2(void* to, const Map* map, int x, int y, u64* bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
    ::"r"(place_of(to)), "l"(map), "r"(x), "r"(y), "r"(place_of(bar)) : "memory");
}
__device__ void store2(void* from, const Map* map, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
    ::"l"(map), "r"(place_of(from)), "r"(x), "r"(y) : "memory");
}
__device__ void load_bytes(void* to, const void* from, u32 bytes, u64* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
    ::"r"(place_of(to)), "l"(from), "r"(bytes), "r"(place_of(bar)) : "memory");
}
__device__ void store_bytes(void* to, const void* from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
    ::"l"(to), "r"(place_of(from)), "r"(bytes) : "memory");
}
#define COMMIT() asm volatile("cp.async.bulk.commit_group;" ::: "memory")
#define STORED() asm volatile("cp.async.bulk.wait_group 0;" ::: "memory")
"""


def run_hopper(
    body: str, arrays: dict[str, np.ndarray], args: tuple[Any, ...], **launch: Any
) -> tuple[dict[str, np.ndarray], LaunchCounts]:
    """Run the kernel `k` of a source that follows `HEAD`; its first line is planted.cu:1.

    An argument is an array's name, a tensor map of one, or a scalar.
    """
    import cupy

    names = list(arrays)
    values = tuple(encode(a, at.buffer_address(names.index(a.buffer))) if isinstance(a, TensorMap) else a for a in args)
    kernel = cupy.RawKernel(f'{HEAD}\n#line 1 "planted.cu"\n{body}', "k", options=("-arch=sm_90a",))
    return run(kernel, arrays, values, **launch)
