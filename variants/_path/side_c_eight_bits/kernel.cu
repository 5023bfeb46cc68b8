#include "eight_bits.cuh"

// Attention with factors of 8 bits: Q, K and V are divided by a scale each, so that their largest element just fits into e4m3,
// and rounded as they are copied on chip. Sums, the softmax and O are as in step 10.
constexpr int D = 32, BR = 64, BC = 32;  // elements per row; rows and keys per tile
constexpr int STRIDE = 48;               // bytes from one row of a tile to the next: eight rows are in different banks

// scales[i] of Q, K and V, a warp each: the smallest power of two that brings the largest magnitude to at most 448.
extern "C" __global__ void find_scale(const half *Q, const half *K, const half *V, float *scales, int rows, int n)
{
    const half *X = blockIdx.x == 0 ? Q : blockIdx.x == 1 ? K : V;
    int end = (blockIdx.x == 0 ? rows : n) * D;
    float largest = 1e-30f;
    for (int i = threadIdx.x; i < end; i += 32) largest = fmaxf(largest, fabsf(__half2float(X[i])));
    int bits = __float_as_int(warp_max(largest) / 448);
    scales[blockIdx.x] = __int_as_float((bits + 0x7fffff) & 0x7f800000);  // rounded up to a power of two
}

// The place of a key in a row of the transposed V. After Q K^T, a lane has P of two keys of each eight; as A of P V, it has to
// have four neighbours. The sum over keys may have any order: this one puts the keys of a lane side by side.
__device__ int place(int key) { return key / 16 * 16 + key % 8 / 2 * 4 + key % 16 / 8 * 2 + key % 2; }

// `height` rows of an array -> a tile of e4m3, divided by a scale; zeros from row `end` on. Of V, columns become rows.
template <bool TRANSPOSED>
__device__ void load_tile(unsigned char *tile, int height, const half *from, int end, float scale)
{
    for (int i = threadIdx.y * 32 + threadIdx.x; i < height * D / 4; i += 128) {
        int row = i / (D / 4), c = i % (D / 4) * 4;
        uint2 x = row < end ? *(const uint2 *)&from[row * D + c] : make_uint2(0, 0);
        float2 low = __half22float2(*(half2 *)&x.x), high = __half22float2(*(half2 *)&x.y);
        unsigned four = pack(low.x / scale, low.y / scale, high.x / scale, high.y / scale);
        if (!TRANSPOSED) *(unsigned *)&tile[row * STRIDE + c] = four;
        for (int e = 0; TRANSPOSED && e < 4; ++e) tile[(c + e) * STRIDE + place(row)] = four >> 8 * e;
    }
}

extern "C" __global__ void attention(const half *Q, const half *K, const half *V, half *O, const float *scales, int rows, int n,
                                     float tau)
{
    __shared__ __align__(16) unsigned char Q_tile[BR * STRIDE], K_tile[BC * STRIDE], V_tile[D * STRIDE];
    int warp = threadIdx.y, lane = threadIdx.x, block_row = blockIdx.x * BR;
    float q_scale = scales[0], k_scale = scales[1], v_scale = scales[2];
    int from = lane / 4 * STRIDE + lane % 4 * 4;  // the lane's part of eight rows of a tile

    load_tile<false>(Q_tile, BR, Q + block_row * D, rows - block_row, q_scale);
    // A lane has parts of two rows of S and O, h = 0 and 1: lane / 4 + 8 h. Of each eight columns it has two, from `column` on.
    // Elements 0 and 1 of s and o are of row h = 0, elements 2 and 3 of row h = 1, and so on for the next eight columns.
    int column = lane % 4 * 2;
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {}, o[16] = {};
    for (int first = 0; first < n; first += BC) {
        __syncthreads();  // no thread reads the tiles before any more
        load_tile<false>(K_tile, BC, K + first * D, n - first, k_scale);
        load_tile<true>(V_tile, BC, V + first * D, n - first, v_scale);
        __syncthreads();  // these tiles are complete
        float s[16] = {};
        unsigned a[4];
        for (int i = 0; i < 4; ++i) a[i] = *(unsigned *)&Q_tile[(16 * warp + i % 2 * 8) * STRIDE + from + i / 2 * 16];
        for (int i = 0; i < 4; ++i) {  // eight keys, all 32 elements at once
            unsigned *k = (unsigned *)&K_tile[8 * i * STRIDE + from];
            multiply_add(s + 4 * i, a, k[0], k[4]);
        }
        for (int i = 0; i < 16; ++i) {
            s[i] = first + i / 4 * 8 + column + i % 2 < n ? tau * q_scale * k_scale * s[i] : -INFINITY;
        }
        for (int h = 0; h < 2; ++h) {
            float m_new = m[h], sum = 0.0f;
            for (int i = 2 * h; i < 16; i += 4) m_new = fmaxf(m_new, fmaxf(s[i], s[i + 1]));
            m_new = quad_max(m_new);
            float correction = expf(m[h] - m_new);
            m[h] = m_new;
            for (int i = 2 * h; i < 16; i += 4) {
                sum += s[i] = 256 * expf(s[i] - m_new);  // at most 256: more of the range of e4m3 than 0 to 1
                sum += s[i + 1] = 256 * expf(s[i + 1] - m_new);
                o[i] *= correction;
                o[i + 1] *= correction;
            }
            l[h] = correction * l[h] + quad_sum(sum);
        }
        for (int i = 0; i < 4; ++i) {  // row i % 2 of the lane, keys of 16 from 16 (i / 2) on
            float *p = s + i / 2 * 8 + i % 2 * 2;
            a[i] = pack(p[0], p[1], p[4], p[5]);
        }
        for (int i = 0; i < 4; ++i) {  // eight columns, all 32 keys at once
            unsigned *v = (unsigned *)&V_tile[8 * i * STRIDE + from];
            multiply_add(o + 4 * i, a, v[0], v[4]);
        }
    }
    for (int h = 0; h < 2; ++h) {
        int row = block_row + 16 * warp + lane / 4 + 8 * h;
        float f = v_scale / l[h];
        if (row >= rows) continue;
        for (int i = 2 * h; i < 16; i += 4) *(unsigned *)&O[row * D + i / 4 * 8 + column] = pack(o[i] * f, o[i + 1] * f);
    }
}
