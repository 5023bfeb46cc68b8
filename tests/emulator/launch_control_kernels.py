"""CUDA kernels that cancel clusters, to follow the head of `blackwell_kernel.py`: what their tests share."""

from __future__ import annotations

HELPERS = """
struct __align__(16) Response { u64 words[2]; };
struct Answer { u32 is, x, y, z; };
#define try_cancel(to, bar) asm volatile( \\
  "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], [%1];" \\
  ::"r"(place_of(to)), "r"(place_of(bar)) : "memory")
#define try_cancel_for_all(to, bar) asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta" \\
  ".mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [%0], [%1];" \\
  ::"r"(place_of(to)), "r"(place_of(bar)) : "memory")
#define READ_ANSWER(a, from) asm volatile("{\\n.reg .b128 h;\\n.reg .pred p;\\nld.shared.b128 h, [%4];\\n" \\
  "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, h;\\nselp.u32 %0, 1, 0, p;\\n" \\
  "mov.u32 %1, 0;\\nmov.u32 %2, 0;\\nmov.u32 %3, 0;\\n" \\
  "@p clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%1, %2, %3, _}, h;\\n}" \\
  : "=r"(a.is), "=r"(a.x), "=r"(a.y), "=r"(a.z) : "r"(place_of(from)) : "memory")
__device__ Answer read(const Response* from) { Answer a; READ_ANSWER(a, from); return a; }
__device__ u32 first_x(const Response* from) {
  u32 x;
  asm volatile("{\\n.reg .b128 h;\\nld.shared.b128 h, [%1];\\n"
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %0, h;\\n}"
    : "=r"(x) : "r"(place_of(from)) : "memory");
  return x;
}
"""
PERSISTENT = f"""{HELPERS}
#line 1 "planted.cu"
extern "C" __global__ void k(const int* x, int* times, int* worker) {{
  __shared__ Response response; __shared__ u64 bar;
  u32 t = threadIdx.x, rank = rank_in_cluster(), parity = 0;
  if (t == 0) init(&bar, 1);
  MEET();
  for (u32 tile = blockIdx.x;; parity ^= 1) {{
    if (t == 0) expect(&bar, 16);
    if (t == 0 && rank == 0) try_cancel_for_all(&response, &bar);
    if (t == 0) {{ times[tile] += x[tile]; worker[tile] = blockIdx.x; }}
    wait(&bar, parity);
    Answer next;
    READ_ANSWER(next, &response);
    if (!next.is) break;
    tile = next.x + rank;
    TO_ASYNC();
    MEET();
  }}
}}"""
"""Each block works on its tile, and then on those of the blocks with its rank in the clusters that it cancels."""

SINGLE = f"""{HELPERS}
#line 1 "planted.cu"
extern "C" __global__ void k(int* y) {{
  __shared__ Response responses[4]; __shared__ u64 bars[4]; u32 t = threadIdx.x, b = blockIdx.x; (void)b;
  if (t == 0) for (int i = 0; i < 4; ++i) init(bars + i, 1);
  __syncthreads();
BODY
}}"""
"""Statements of a test: `t` and `b` are the thread and the block; each of four responses has an mbarrier."""
