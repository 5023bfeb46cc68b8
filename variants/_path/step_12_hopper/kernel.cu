#include "hopper.cuh"

// FlashAttention-3 (Shah et al. 2024, arXiv 2407.08608): a fifth warp, the producer, only copies tiles; the other four, the
// consumers, only multiply them. Barriers in shared memory are all that connects the two.
constexpr int D = 32, BR = 64, BC = 32, CONSUMERS = 128;  // elements per row; rows and keys per tile; threads that multiply
constexpr int Q_BYTES = BR * D * 2, KV_BYTES = 2 * BC * D * 2;

extern "C" __global__ void attention(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
                                     const __grid_constant__ TensorMap V, half *O, int rows, int n, float tau)
{
    __shared__ __align__(1024) half Q_tile[BR * D], K_tiles[2][BC * D], V_tiles[2][BC * D];
    __shared__ u64 Q_full, full[2], empty[2];  // of each stage: its tiles have arrived; nobody reads them any more
    int warp = threadIdx.y, lane = threadIdx.x, block_row = blockIdx.x * BR;

    if (warp == 0 && lane == 0) {
        init_barrier(&Q_full, 1);
        for (int stage = 0; stage < 2; ++stage) {
            init_barrier(&full[stage], 1);
            init_barrier(&empty[stage], CONSUMERS);
        }
        publish_barriers();
    }
    __syncthreads();
    if (warp == 4 && lane == 0) {  // the producer needs one thread
        arrive_and_expect(&Q_full, Q_BYTES);
        copy_tile(Q_tile, Q, block_row, &Q_full);
        for (int first = 0; first < n; first += BC) {
            int stage = first / BC % 2, parity = first / BC / 2 % 2;
            wait(&empty[stage], 1 - parity);  // at first, both stages are empty
            arrive_and_expect(&full[stage], KV_BYTES);
            copy_tile(K_tiles[stage], K, first, &full[stage]);
            copy_tile(V_tiles[stage], V, first, &full[stage]);
        }
    }
    if (warp == 4) return;

    // A lane has parts of two rows of S and O, h = 0 and 1: lane / 4 + 8 h. Of each eight columns it has two, from `column` on.
    // Elements 0 and 1 of s and o are of row h = 0, elements 2 and 3 of row h = 1, and so on for the next eight columns.
    int column = lane % 4 * 2;
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {}, o[16] = {};
    wait(&Q_full, 0);
    for (int first = 0; first < n; first += BC) {
        int stage = first / BC % 2, parity = first / BC / 2 % 2;
        wait(&full[stage], parity);
        float s[16] = {};
        begin_products();
        for (int c = 0; c < D; c += 16) multiply_add(s, describe(Q_tile + c), describe(K_tiles[stage] + c));
        wait_for_products(s);
        for (int i = 0; i < 16; ++i) s[i] = first + i / 4 * 8 + column + i % 2 < n ? tau * s[i] : -INFINITY;
        for (int h = 0; h < 2; ++h) {
            float m_new = m[h], sum = 0.0f;
            for (int i = 2 * h; i < 16; i += 4) m_new = fmaxf(m_new, fmaxf(s[i], s[i + 1]));
            m_new = quad_max(m_new);
            float correction = expf(m[h] - m_new);
            m[h] = m_new;
            for (int i = 2 * h; i < 16; i += 4) {
                sum += s[i] = expf(s[i] - m_new);
                sum += s[i + 1] = expf(s[i + 1] - m_new);
                o[i] *= correction;
                o[i + 1] *= correction;
            }
            l[h] = correction * l[h] + quad_sum(sum);
        }
        unsigned a[8];  // P, rounded, as the A of the next products
        for (int i = 0; i < 8; ++i) a[i] = pack(s[2 * i], s[2 * i + 1]);
        begin_products();
        for (int j = 0; j < BC; j += 16) multiply_add(o, a + j / 4, describe(V_tiles[stage] + j * D));
        wait_for_products(o);
        arrive(&empty[stage]);
    }
    for (int h = 0; h < 2; ++h) {
        int row = block_row + 16 * warp + lane / 4 + 8 * h;
        if (row >= rows) continue;
        for (int i = 2 * h; i < 16; i += 4) *(unsigned *)&O[row * D + i / 4 * 8 + column] = pack(o[i] / l[h], o[i + 1] / l[h]);
    }
}
