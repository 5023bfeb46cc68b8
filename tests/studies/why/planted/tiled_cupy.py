"""One good tiled kernel in CUDA, and the same kernel with one slip each: what `why` has to name first."""

import cupy
import numpy as np

from harness import Launch, Plan, Variant

CODE = r"""
#define D 64
#define BR (16 * TM)
#define BC (8 * TN)
#ifndef LD
#define LD (D + 4)
#endif
#define LP (BC + 4)

// 16 or 4 bytes from global to shared memory, without waiting.
__device__ __forceinline__ void copy16(float* to, const float* from) {
    unsigned place = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(place), "l"(from));
}
__device__ __forceinline__ void copy4(float* to, const float* from) {
    unsigned place = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(place), "l"(from));
}
template <int ROWS> __device__ __forceinline__ void copy_tile(float* tile, const float* from, int t) {
#ifdef UNCOALESCED
#pragma unroll 4
    for (int i = t; i < ROWS * D; i += 128) copy4(tile + (i % ROWS) * LD + i / ROWS, from + (i % ROWS) * D + i / ROWS);
#else
#pragma unroll 4
    for (int i = t; i < ROWS * D / 4; i += 128) copy16(tile + i / (D / 4) * LD + i % (D / 4) * 4, from + i * 4);
#endif
}
#define COMMIT asm volatile("cp.async.commit_group;")
#define WAIT(n) asm volatile("cp.async.wait_group %0;" :: "n"(n))

extern "C" __global__ void __launch_bounds__(128 * HALF, BLOCKS) tiled(
    const float* Q, const float* K, const float* V, float* O, int q_len, int kv_len, float tau, int head0, int heads)
{
    extern __shared__ __align__(16) float shared[];
    float* Q_tile = shared;
    float* K_tile = Q_tile + BR * LD;
    float* V_tile = K_tile + STAGES * BC * LD;
    float* P_tile = V_tile + STAGES * BC * LD;
#if HALF == 2  // the slip: the upper half of each warp idles
    const bool works = threadIdx.x % 32 < 16;
    const int t = threadIdx.x / 32 * 16 + threadIdx.x % 16;
#else
    const bool works = true;
    const int t = threadIdx.x;
#endif
    const int ty = t / 8, tx = t % 8;
#if CAUSAL  // all heads of a tile of rows before those of the next
    const int place = blockIdx.x / heads;
    const int first_row = (HEAVIEST_LAST ? place : q_len / BR - 1 - place) * BR;
    const size_t head = blockIdx.x % heads;
#else
    const int first_row = blockIdx.x * BR;
    const size_t head = head0 + blockIdx.y;
#endif
    const float* Q_head = Q + (head * q_len + first_row) * D;
    const float* K_head = K + head * kv_len * D;
    const float* V_head = V + head * kv_len * D;
    const int tiles = CAUSAL ? min((first_row + BR + kv_len - q_len + BC - 1) / BC, kv_len / BC) : kv_len / BC;

    float o[TM][8], l[TM], m[TM];
    for (int i = 0; i < TM; ++i) {
        l[i] = 0; m[i] = -1e30f;
        for (int j = 0; j < 8; ++j) o[i][j] = 0;
    }
    if (works) {
        copy_tile<BR>(Q_tile, Q_head, t);
        copy_tile<BC>(K_tile, K_head, t);
        copy_tile<BC>(V_tile, V_head, t);
    }
    COMMIT;
    for (int tile = 0; tile < tiles; ++tile) {
#if STAGES == 2
        const float* Ks = K_tile + (tile & 1) * BC * LD;
        const float* Vs = V_tile + (tile & 1) * BC * LD;
        if (tile + 1 < tiles && works) {
            copy_tile<BC>(K_tile + (~tile & 1) * BC * LD, K_head + (tile + 1) * BC * D, t);
            copy_tile<BC>(V_tile + (~tile & 1) * BC * LD, V_head + (tile + 1) * BC * D, t);
        }
        COMMIT;
        WAIT(1);
        __syncthreads();
#else
        const float *Ks = K_tile, *Vs = V_tile;
        if (tile > 0) {
            if (works) {
                copy_tile<BC>(K_tile, K_head + tile * BC * D, t);
                copy_tile<BC>(V_tile, V_head + tile * BC * D, t);
            }
            COMMIT;
        }
        WAIT(0);
        __syncthreads();
#endif
#ifdef REREAD  // the slip: Q comes again with each tile of keys
        if (tile > 0) {
            if (works) copy_tile<BR>(Q_tile, Q_head, t);
            COMMIT;
            WAIT(0);
            __syncthreads();
        }
#endif
        if (works) {
            float s[TM][TN] = {};
#pragma unroll 4
            for (int e = 0; e < D; e += 4) {
                float4 q[TM], k[TN];
                for (int i = 0; i < TM; ++i) q[i] = *(const float4*)(Q_tile + (ty * TM + i) * LD + e);
                for (int j = 0; j < TN; ++j) k[j] = *(const float4*)(Ks + PLACE((tx + 8 * j) * LD + e));
#ifdef DIVERGENT  // the slip: odd lanes go another way to the same sums
                if (tx % 2) {
                    asm volatile("// odd lanes");
                    for (int i = 0; i < TM; ++i)
                        for (int j = 0; j < TN; ++j) {
                            s[i][j] += q[i].w * k[j].w; s[i][j] += q[i].z * k[j].z;
                            s[i][j] += q[i].y * k[j].y; s[i][j] += q[i].x * k[j].x;
                        }
                    continue;
                }
#endif
                for (int i = 0; i < TM; ++i)
                    for (int j = 0; j < TN; ++j) {
                        s[i][j] += q[i].x * k[j].x; s[i][j] += q[i].y * k[j].y;
                        s[i][j] += q[i].z * k[j].z; s[i][j] += q[i].w * k[j].w;
                    }
            }
            for (int i = 0; i < TM; ++i) {
                float most = m[i];
                const int last = CAUSAL ? first_row + ty * TM + i + kv_len - q_len - tile * BC : BC;
                for (int j = 0; j < TN; ++j) {
                    s[i][j] *= tau;
                    if (CAUSAL && tx + 8 * j > last) s[i][j] = -1e30f;
                    most = fmaxf(most, s[i][j]);
                }
                for (int n = 1; n < 8; n *= 2) most = fmaxf(most, __shfl_xor_sync(LANES, most, n));
                const float shrink = __expf(m[i] - most);
                float sum = 0;
                for (int j = 0; j < TN; ++j) {
                    const float p = WEIGHT(s[i][j], most);
                    P_tile[(ty * TM + i) * LP + (tx + 8 * j)] = p;
                    sum += p;
                }
                for (int n = 1; n < 8; n *= 2) sum += __shfl_xor_sync(LANES, sum, n);
                l[i] = l[i] * shrink + sum;
                m[i] = most;
                for (int j = 0; j < 8; ++j) o[i][j] *= shrink;
            }
            __syncwarp(LANES);
#pragma unroll 4
            for (int k = 0; k < BC; ++k) {
                const float4 v0 = *(const float4*)(Vs + k * LD + tx * 4);
                const float4 v1 = *(const float4*)(Vs + k * LD + 32 + tx * 4);
                for (int i = 0; i < TM; ++i) {
                    const float p = P_tile[(ty * TM + i) * LP + k];
                    o[i][0] += p * v0.x; o[i][1] += p * v0.y; o[i][2] += p * v0.z; o[i][3] += p * v0.w;
                    o[i][4] += p * v1.x; o[i][5] += p * v1.y; o[i][6] += p * v1.z; o[i][7] += p * v1.w;
                }
            }
        }
        __syncthreads();
    }
    if (works)
        for (int i = 0; i < TM; ++i) {
            float* row = O + (head * q_len + first_row + ty * TM + i) * D;
            const float inverse = 1 / l[i];
            *(float4*)(row + tx * 4) =
                make_float4(o[i][0] * inverse, o[i][1] * inverse, o[i][2] * inverse, o[i][3] * inverse);
            *(float4*)(row + 32 + tx * 4) =
                make_float4(o[i][4] * inverse, o[i][5] * inverse, o[i][6] * inverse, o[i][7] * inverse);
        }
}
"""

GOOD = {
    "TM": "4", "TN": "4", "STAGES": "2", "HALF": "1", "BLOCKS": "1", "KIB": "0",
    "LANES": "0xffffffffu", "WEIGHT(s,m)": "__expf((s)-(m))",
    "CAUSAL": "0", "HEAVIEST_LAST": "0", "PLACE(i)": "(i)",
}  # fmt: skip

ALONE = {"TN": "2", "KIB": "150"}
"""One block to a multiprocessor, as the largest tiles have it: then nobody else works while one waits."""

SLIPS = {
    "good-cupy": {},
    "uncoalesced-cupy": {"UNCOALESCED": "1"},
    "bank-conflicts-cupy": {"LD": "64"},
    "good-alone-cupy": {**ALONE},
    "one-stage-less-cupy": {**ALONE, "STAGES": "1"},
    "spills-cupy": {"BLOCKS": "14"},
    "tiny-tiles-cupy": {"TM": "1", "TN": "1"},
    "re-read-cupy": {"REREAD": "1"},
    "half-warp-cupy": {"HALF": "2", "LANES": "0x0000ffffu"},
    "fp64-cupy": {"WEIGHT(s,m)": "(float)exp((double)((s)-(m)))"},
}
"""Name -> what its options say otherwise than the good one's."""


LATER = {
    "good-causal-cupy": {"CAUSAL": "1"},
    "heaviest-last-cupy": {"CAUSAL": "1", "HEAVIEST_LAST": "1"},
    "divergence-cupy": {"DIVERGENT": "1"},
    "special-functions-cupy": {"WEIGHT(s,m)": "__expf(__logf(__fdividef(__expf(s),__expf(m))))"},
    "low-occupancy-cupy": {"KIB": "80"},
    "addresses-cupy": {"PLACE(i)": "((i)%(unsigned)(kv_len*LD))"},
    "launch-per-head-cupy": {},
}
"""Planted when the rules were done. The last one has a launch for each head.

Special functions are four more a weight. With one more they cost 0.3 %, and two compilations of one text differ by
that: NVRTC does not always put loads of shared memory in the same order.
"""


def plan_of(defines, launches_per_head=False):
    """A plan with these options; D is 64, lengths are multiples of the tiles."""
    chosen = {**GOOD, **defines}
    options = (*(f"-D{name}={value}" for name, value in chosen.items()), "--std=c++17")
    kernel = cupy.RawKernel(CODE, "tiled", options=options)
    rows, keys = 16 * int(chosen["TM"]), 8 * int(chosen["TN"])
    width, stages, threads = int(chosen.get("LD", 68)), int(chosen["STAGES"]), 128 * int(chosen["HALF"])
    shared = 4 * (rows * width + 2 * stages * keys * width + rows * (keys + 4)) + 1024 * int(chosen["KIB"])

    def plan(problem):
        numbers = (np.int32(problem.q_len), np.int32(problem.kv_len), np.float32(problem.tau))
        heads = problem.batch * problem.heads
        firsts, count = (range(heads), 1) if launches_per_head else ((0,), heads)
        tiles = problem.q_len // rows
        grid = (tiles * heads,) if chosen["CAUSAL"] == "1" else (tiles, count)
        return Plan(
            tuple(
                Launch(
                    kernel,
                    grid,
                    (threads,),
                    ("Q", "K", "V", "O", *numbers, np.int32(first), np.int32(heads)),
                    shared_bytes=shared,
                )
                for first in firsts
            )
        )

    return plan


def supports(problem):
    if problem.dtype != "float32" or problem.head_dim != 64 or problem.q_len % 64 or problem.kv_len % 32:
        return "float32, head_dim 64, whole tiles"
    return None


def register(registry):
    for name, defines in {**SLIPS, **LATER}.items():
        plan = plan_of(defines, launches_per_head=name == "launch-per-head-cupy")
        registry.add(Variant(name=name, plan=plan, supports=supports, idea="planted"))
