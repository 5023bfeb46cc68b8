"""A right variant of attention-backward."""
from functools import lru_cache

import cupy
import numpy as np

from harness import Buffer, Launch, Plan, Variant
from variants._features import SPAN_FEATURES, band, has_spans

COMMON = r"""
#ifdef SPANS
#define ROW_LIMITS const int* first_keys, const int* end_keys
#define KEY_LIMITS const int* first_rows, const int* end_rows
__device__ int first_key_of(const int* first_keys, int i, int b, int q_len, int kv_len) { return first_keys[b * q_len + i]; }
__device__ int end_key_of(const int* end_keys, int i, int b, int q_len, int kv_len) { return end_keys[b * q_len + i]; }
__device__ int first_row_of(const int* first_rows, int j, int b, int q_len, int kv_len) { return first_rows[b * kv_len + j]; }
__device__ int end_row_of(const int* end_rows, int j, int b, int q_len, int kv_len) { return end_rows[b * kv_len + j]; }
#else
#define ROW_LIMITS int first_keys, int end_keys
#define KEY_LIMITS int end_rows, int first_rows
__device__ int first_key_of(int before, int i, int b, int q_len, int kv_len) { return max(0, min(kv_len, i + kv_len - q_len - before)); }
__device__ int end_key_of(int after, int i, int b, int q_len, int kv_len) { return max(0, min(kv_len, i + kv_len - q_len + after + 1)); }
__device__ int first_row_of(int after, int j, int b, int q_len, int kv_len) { return max(0, min(q_len, j + q_len - kv_len - after)); }
__device__ int end_row_of(int before, int j, int b, int q_len, int kv_len) { return max(0, min(q_len, j + q_len - kv_len + before + 1)); }
#endif
"""

# 64 keys per block, one thread per key, tiles of 16 rows go by; limits of keys in shared memory. dQ the other way round.
TILED = COMMON + r"""
#define N 64
#define M 16
extern "C" __global__ void rows(const float* Q, const float* K, const float* V, const float* O, const float* dO,
        const float* lse, float* delta, float* dQ, int q_len, int kv_len, int d, int group, float tau, ROW_LIMITS) {
    extern __shared__ float K_tile[];
    float* V_tile = K_tile + M * d;
    __shared__ int first_kept[N], end_kept[N];
    int t = threadIdx.x, i0 = blockIdx.x * N, h = blockIdx.y, b = blockIdx.z, heads = gridDim.y, kv_heads = heads / group;
    int n_rows = min(N, q_len - i0), i = i0 + t;
    size_t row = ((size_t)b * heads + h) * q_len + i, kv = ((size_t)b * kv_heads + h / group) * kv_len;
    first_kept[t] = t < n_rows ? first_key_of(first_keys, i, b, q_len, kv_len) : kv_len;
    end_kept[t] = t < n_rows ? end_key_of(end_keys, i, b, q_len, kv_len) : kv_len;
    __syncthreads();
    float D = 0.0f, L = 0.0f;
    if (t < n_rows) {
        for (int c = 0; c < d; ++c) { D += dO[row * d + c] * O[row * d + c]; dQ[row * d + c] = 0.0f; }
        L = lse[row];
        delta[row] = D;
    }
    int start = first_kept[0] / M * M, stop = end_kept[n_rows - 1];
    for (int j0 = start; j0 < stop; j0 += M) {
        int n_keys = min(M, kv_len - j0);
        for (int e = t; e < n_keys * d; e += N) { K_tile[e] = K[(kv + j0) * d + e]; V_tile[e] = V[(kv + j0) * d + e]; }
        __syncthreads();
        if (t < n_rows)
            for (int y = 0; y < n_keys; ++y) {
                if (j0 + y < first_kept[t] || j0 + y >= end_kept[t]) continue;
                float s = 0.0f, dp = 0.0f;
                for (int c = 0; c < d; ++c) { s += Q[row * d + c] * K_tile[y * d + c]; dp += dO[row * d + c] * V_tile[y * d + c]; }
                float ds = expf(tau * s - L) * (dp - D);
                for (int c = 0; c < d; ++c) dQ[row * d + c] += ds * K_tile[y * d + c];
            }
        __syncthreads();
    }
    if (t < n_rows) for (int c = 0; c < d; ++c) dQ[row * d + c] *= tau;
}
extern "C" __global__ void keys(const float* Q, const float* K, const float* V, const float* dO, const float* lse,
        const float* delta, float* dK, float* dV, int q_len, int kv_len, int d, int group, float tau, KEY_LIMITS) {
    extern __shared__ float Q_tile[];
    float *dO_tile = Q_tile + M * d;
    __shared__ float lse_tile[M], delta_tile[M];
    __shared__ int first_kept[N], end_kept[N];
    int t = threadIdx.x, j0 = blockIdx.x * N, g = blockIdx.y, b = blockIdx.z, kv_heads = gridDim.y;
    int n_keys = min(N, kv_len - j0), j = j0 + t;
    size_t key = ((size_t)b * kv_heads + g) * kv_len + j;
    int limits_of = b;
    first_kept[t] = t < n_keys ? first_row_of(first_rows, j, limits_of, q_len, kv_len) : q_len;
    end_kept[t] = t < n_keys ? end_row_of(end_rows, j, limits_of, q_len, kv_len) : q_len;
    __syncthreads();  // kept
    if (t < n_keys) for (int c = 0; c < d; ++c) dK[key * d + c] = dV[key * d + c] = 0.0f;
    int start = first_kept[0] / M * M, stop = end_kept[n_keys - 1];
    int first_by_all = first_kept[n_keys - 1], end_by_all = end_kept[0];
    for (int m = 0; m < group; ++m) {
        size_t head = ((size_t)b * kv_heads + g) * group + m;
        for (int i0 = start; i0 < stop; i0 += M) {
            int n_rows = min(M, q_len - i0);
            for (int e = t; e < n_rows * d; e += N) {
                Q_tile[e] = Q[(head * q_len + i0) * d + e];
                dO_tile[e] = dO[(head * q_len + i0) * d + e];
            }
            if (t < n_rows) { lse_tile[t] = lse[head * q_len + i0 + t]; delta_tile[t] = delta[head * q_len + i0 + t]; }
            __syncthreads();
            bool whole = first_by_all <= i0 && i0 + n_rows <= end_by_all;
            if (t < n_keys)
                for (int x = 0; x < n_rows; ++x) {
                    bool seen = whole || (first_kept[t] <= i0 + x && i0 + x < end_kept[t]);
                    if (!seen) continue;
                    float s = 0.0f, dp = 0.0f;
                    for (int c = 0; c < d; ++c) { s += Q_tile[x * d + c] * K[key * d + c]; dp += dO_tile[x * d + c] * V[key * d + c]; }
                    float p = expf(tau * s - lse_tile[x]), ds = p * (dp - delta_tile[x]);
                    for (int c = 0; c < d; ++c) { dV[key * d + c] += p * dO_tile[x * d + c]; dK[key * d + c] += ds * Q_tile[x * d + c]; }
                }
            __syncthreads();  // before the next tile
        }
    }
    if (t < n_keys) for (int c = 0; c < d; ++c) dK[key * d + c] *= tau;
}
"""


@lru_cache(None)
def compiled(spans):
    options = ("-DSPANS",) if spans else ()
    return tuple(cupy.RawKernel(TILED, name, options=options) for name in ("rows", "keys"))


def plan(p):
    rows, keys = compiled(has_spans(p))
    shared = 2 * 16 * p.head_dim * 4
    of_rows, of_keys = (("first_keys", "end_keys"), ("first_rows", "end_rows")) if has_spans(p) else (band(p), band(p))
    sizes = [np.int32(x) for x in (p.q_len, p.kv_len, p.head_dim, p.group)] + [np.float32(p.tau)]
    return Plan(
        (
            Launch(rows, (-(-p.q_len // 64), p.heads, p.batch), (64,),
                   ("Q", "K", "V", "O", "dO", "lse", "delta", "dQ", *sizes, *of_rows), shared),
            Launch(keys, (-(-p.kv_len // 64), p.kv_heads, p.batch), (64,),
                   ("Q", "K", "V", "dO", "lse", "delta", "dK", "dV", *sizes, *of_keys), shared),
        ),
        (Buffer("delta", (p.batch, p.heads, p.q_len), "float32"),),
    )


def supports(p):
    if p.dtype != "float32":
        return "float32"
    return None if p.head_dim <= 64 else "head_dim up to 64"


def register(registry):
    registry.add(Variant(name="x-gradient-tiles", operation="attention-backward", plan=plan, supports=supports,
                         takes=SPAN_FEATURES, idea="64 keys per block, one thread per key; 64 rows per block for dQ"))
