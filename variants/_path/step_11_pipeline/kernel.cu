#include "tensor_cores.cuh"

// FlashAttention-2 with a pipeline: while the tiles of 32 keys are multiplied, those of the next 32 are copied. K and V have
// two places each in shared memory, the stages, which take turns.
constexpr int D = 32, BR = 64, BC = 32;  // elements per row; rows and keys per tile

// Where chunk `chunk` of eight elements (16 bytes) of a row lies: two rows share a line of 128 bytes, so that the place of a
// chunk changes with every second row.
__device__ half *place(half *tile, int row, int chunk) { return tile + row * D + 8 * (chunk ^ row / 2 % 4); }

// Begin to copy `height` rows of an array to a tile in shared memory; zeros below row `end`. Copies on the way need no register
// (PTX ISA: cp.async; the last number is how many of the 16 bytes are read, the others become 0).
__device__ void copy_tile(half *tile, int height, const half *from, int end)
{
    for (int i = threadIdx.y * 32 + threadIdx.x; i < height * D / 8; i += 128) {
        int row = i / (D / 8), chunk = i % (D / 8);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address(place(tile, row, chunk))),
                     "l"(&from[row * D + 8 * chunk]), "r"(row < end ? 16 : 0) : "memory");
    }
}

// The copies that a thread has begun since its last commit become a group. Then wait until all of the thread's groups have
// arrived, but for the last one.
__device__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ void wait_for_all_but_last() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

extern "C" __global__ void attention(const half *Q, const half *K, const half *V, half *O, int rows, int n, float tau)
{
    __shared__ __align__(128) half Q_tile[BR * D], K_tiles[2][BC * D], V_tiles[2][BC * D];
    int warp = threadIdx.y, lane = threadIdx.x, block_row = blockIdx.x * BR;

    copy_tile(Q_tile, BR, Q + block_row * D, rows - block_row);
    copy_tile(K_tiles[0], BC, K, n);
    copy_tile(V_tiles[0], BC, V, n);
    commit_copies();
    // A lane has parts of two rows of S and O, h = 0 and 1: lane / 4 + 8 h. Of each eight columns it has two, from `column` on.
    // Elements 0 and 1 of s and o are of row h = 0, elements 2 and 3 of row h = 1, and so on for the next eight columns.
    int column = lane % 4 * 2;
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {}, o[16] = {};
    for (int first = 0; first < n; first += BC) {
        int stage = first / BC % 2, next = first + BC;
        half *K_tile = K_tiles[stage], *V_tile = V_tiles[stage];
        if (next < n) {
            copy_tile(K_tiles[1 - stage], BC, K + next * D, n - next);
            copy_tile(V_tiles[1 - stage], BC, V + next * D, n - next);
        }
        commit_copies();          // a group without copies after the last tile
        wait_for_all_but_last();  // this thread's part of these tiles has arrived
        __syncthreads();          // the parts of all other threads, too
        float s[16] = {};
        for (int c = 0; c < D / 8; c += 2) {  // 16 elements of each row
            unsigned q[4], k[4];
            load_matrices(q, place(Q_tile, 16 * warp + lane % 16, c + lane / 16));
            for (int j = 0; j < BC; j += 16) {  // 16 keys
                load_matrices(k, place(K_tile, j + lane % 16, c + lane / 16));
                multiply_add(s + j / 2, q, k[0], k[2]);
                multiply_add(s + j / 2 + 4, q, k[1], k[3]);
            }
        }
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
        for (int j = 0; j < BC; j += 16) {
            float *p = s + j / 2;  // as the products left S, P is the A of the next ones: it only has to be rounded
            unsigned a[4] = {pack(p[0], p[1]), pack(p[2], p[3]), pack(p[4], p[5]), pack(p[6], p[7])}, v[4];
            for (int c = 0; c < D / 8; c += 2) {
                load_transposed(v, place(V_tile, j + lane % 16, c + lane / 16));
                multiply_add(o + 4 * c, a, v[0], v[1]);
                multiply_add(o + 4 * c + 4, a, v[2], v[3]);
            }
        }
        __syncthreads();  // no thread reads these tiles any more: the next copies may overwrite them
    }
    for (int h = 0; h < 2; ++h) {
        int row = block_row + 16 * warp + lane / 4 + 8 * h;
        if (row >= rows) continue;
        for (int i = 2 * h; i < 16; i += 4) *(unsigned *)&O[row * D + i / 4 * 8 + column] = pack(o[i] / l[h], o[i + 1] / l[h]);
    }
}
