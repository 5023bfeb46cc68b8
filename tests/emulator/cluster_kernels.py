"""CUDA kernels for clusters of blocks, to follow `hopper_kernel.HEAD`: what tests of the emulator and of GPUs share."""

from __future__ import annotations

import numpy as np

from harness.model.tensor_map import TensorMap

HELPERS = """
__device__ u32 rank_of_block() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ u32 blocks_of_cluster() { u32 n; asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n)); return n; }
__device__ u32 place_in(const void* p, u32 rank) {
  u32 place;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(place_of(p)), "r"(rank));
  return place;
}
template <class T> __device__ T* of_block(T* p, u32 rank) {
  T* there;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(rank));
  return there;
}
__device__ void arrive_at(u64* bar, u32 rank) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(place_in(bar, rank)) : "memory");
}
__device__ void wait_cluster(u64* bar, u32 parity) {
  asm volatile("{\\n.reg .pred p;\\nagain: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\\n"
    "@!p bra again;\\n}" ::"r"(place_of(bar)), "r"(parity) : "memory");
}
__device__ void multicast2(void* to, const Map* map, int x, int y, u64* bar, u32 blocks) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
    "[%0], [%1, {%2, %3}], [%4], %5;"
    ::"r"(place_of(to)), "l"(map), "r"(x), "r"(y), "r"(place_of(bar)), "h"((unsigned short)blocks) : "memory");
}
__device__ void copy_to_block(void* to, const void* from, u32 bytes, u64* bar, u32 rank) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
    ::"r"(place_in(to, rank)), "r"(place_of(from)), "r"(bytes), "r"(place_in(bar, rank)) : "memory");
}
#define ARRIVE() asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory")
#define WAIT() asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory")
"""

MEETING = f"""{HELPERS.strip()}
#line 1 "planted.cu"
__device__ void arrive() {{ asm volatile("barrier.cluster.arrive;" ::: "memory"); }}
__device__ void wait() {{ asm volatile("barrier.cluster.wait;" ::: "memory"); }}
__device__ void met() {{ arrive(); wait(); }}
extern "C" __global__ void k(int* y) {{
  __shared__ volatile int s[64]; auto s_of = [&](int r) {{ return of_block(s, r); }};
  int t = threadIdx.x, b = blockIdx.x, r = rank_of_block(), n = blocks_of_cluster(), i = b * blockDim.x + t;
BODY
}}"""
"""`t`, `b`, `r`, `n`: the thread, the block, its rank, blocks of the cluster; `y[i]` is the thread's own."""

REDUCTION = f"""{HELPERS}
extern "C" __global__ void k(const int* x, int* y) {{
  __shared__ int parts[8]; __shared__ int warps[4];
  int t = threadIdx.x, r = rank_of_block(), n = blocks_of_cluster(), sum = 0;
  for (int i = t; i < 512; i += 128) sum += x[(blockIdx.y * n + r) * 512 + i];
  for (int half = 16; half; half /= 2) sum += __shfl_down_sync(~0u, sum, half);
  if (t % 32 == 0) warps[t / 32] = sum;
  ARRIVE(); WAIT();
  if (t == 0) *of_block(&parts[r], 0) = warps[0] + warps[1] + warps[2] + warps[3];
  ARRIVE(); WAIT();
  if (t == 0 && r == 0) {{
    sum = 0;
    for (int i = 0; i < n; ++i) sum += parts[i];
    y[blockIdx.y] = sum;
  }}
}}"""
"""y[j] is the sum of row j of x, which has 512 elements for each block of the cluster."""

MATRIX, TILE = 64, 16
"""Rows and columns of the matrices and of their tiles."""

PRODUCT = f"""{HELPERS}
#define TILE {TILE}
extern "C" __global__ void k(const __grid_constant__ Map a_map, const __grid_constant__ Map b_map, float* c) {{
  __shared__ __align__(1024) float a[2][TILE][TILE], b[2][TILE][TILE];
  __shared__ u64 full[2], empty[2];
  u32 wide, high, column, row;
  asm volatile("mov.u32 %0, %%cluster_nctaid.x; mov.u32 %1, %%cluster_nctaid.y;" : "=r"(wide), "=r"(high));
  asm volatile("mov.u32 %0, %%cluster_ctaid.x; mov.u32 %1, %%cluster_ctaid.y;" : "=r"(column), "=r"(row));
  int t = threadIdx.x, x = t % TILE, y = t / TILE;
  if (t == 0) {{
    for (int s = 0; s < 2; ++s) {{ init(full + s, 1); init(empty + s, wide + high - 1); }}
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }}
  ARRIVE(); WAIT();
  // Blocks of my row of the cluster, who get my tiles of A, and of my column, who get those of B.
  u32 of_row = ((1u << wide) - 1) << (row * wide), of_column = 0;
  for (u32 k = 0; k < high; ++k) of_column |= 1u << (k * wide + column);
  float sum = 0;
  for (int i = 0; i < {MATRIX} / TILE; ++i) {{
    int s = i & 1, phase = (i >> 1) & 1;
    if (t == 0) {{
      expect(full + s, 2 * TILE * TILE * 4);
      // All that write to my tiles, or whose tiles I write to, are done with what was there.
      if (i > 1) wait_cluster(empty + s, phase ^ 1);
      if (i % wide == column) multicast2(a[s], &a_map, i * TILE, blockIdx.y * TILE, full + s, of_row);
      if (i % high == row) multicast2(b[s], &b_map, blockIdx.x * TILE, i * TILE, full + s, of_column);
    }}
    wait_cluster(full + s, phase);
    for (int k = 0; k < TILE; ++k) sum += a[s][y][k] * b[s][k][x];
    __syncthreads();
    if (t == 0) {{
      for (u32 k = 0; k < wide; ++k) arrive_at(empty + s, row * wide + k);
      for (u32 k = 0; k < high; ++k) if (k != row) arrive_at(empty + s, k * wide + column);
    }}
  }}
  c[(blockIdx.y * TILE + y) * {MATRIX} + blockIdx.x * TILE + x] = sum;
  ARRIVE(); WAIT();
}}"""
"""C = A B in tiles, a pipeline of two stages; those that blocks of a cluster share one of them loads for all."""


def product_arguments() -> tuple[dict[str, np.ndarray], tuple[TensorMap, TensorMap], np.ndarray]:
    """Arrays, tensor maps of A and B, and what C has to be: small whole numbers, whose sums are exact."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-8, 8, (MATRIX, MATRIX)).astype(np.float32) for _ in range(2))
    arrays = {"A": a, "B": b, "C": np.zeros((MATRIX, MATRIX), np.float32)}
    a_map, b_map = (TensorMap(name, (MATRIX, MATRIX), (4 * MATRIX,), (TILE, TILE), "float32") for name in "AB")
    return arrays, (a_map, b_map), a @ b
