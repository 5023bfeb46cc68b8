// What a warp has of O_i and L_i at the end, divided and written. _mma/mma.cuh, _mma/tiles.cuh and registers.cuh are put before
// this text; line numbers are those of kernel.cu.
//
// A sink is a key more, without a value: l_i = exp(m_i - m) l_i + exp(sink - m), m the larger of both.

// The block's first row is `first_row` of all heads' rows, and so many `rows` from there on are the head's. They are gathered
// in `tile`, of which each warp alone has read its part until now. Where tiles of both kinds share their code, each warp
// writes its own part, as soon as it has met its keys; else all write all, which takes fewer registers.
__device__ __forceinline__ void write_rows(stored *__restrict__ O, float *__restrict__ lse, size_t first_row, int rows,
                                           const Rows &own, unsigned char *tile, int warp, int lane, float kept_factor,
                                           [[maybe_unused]] float head_sink)
{
    // Line 12: O_i = diag(l_i)^-1 O_i. A row that saw nothing has l = 0: its O stays 0.
    __syncwarp();
    const int warps_row = warp * WARP_ROWS;
#ifdef SINKS
    const float sink = LOG2_E * head_sink;
#endif
    float own_m = 0.0f, own_l = 0.0f;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = warps_row + 16 * i + 8 * h + lane / 4;
#ifdef SINKS
            const float m = fmaxf(own.m[i][h], sink), minus_m = m == MINUS_INFINITY ? 0.0f : -m;
            const float correction = exp2_approx(own.m[i][h] + minus_m);
            const float l = correction * quad_sum(own.l[i][h]) + exp2_approx(sink + minus_m);
            const float inverse = l == 0.0f ? 0.0f : kept_factor * correction / l;
#else
            const float m = own.m[i][h], l = quad_sum(own.l[i][h]);
            const float inverse = l == 0.0f ? 0.0f : kept_factor / l;
#endif
#pragma unroll
            for (int j = 0; j < TD; ++j) {
                unsigned char *const at = tile + swizzled<ROW_BYTES>(row, j) + lane % 4 * 4;
                *reinterpret_cast<unsigned *>(at) = packed(own.O[i][j][2 * h] * inverse, own.O[i][j][2 * h + 1] * inverse);
            }
            if (lane % 4 == 2 * i + h) {
                own_m = m;
                own_l = l;
            }
        }
    const int own_row = lane % 4 * 8 + lane / 4;
    if (own_row < min(WARP_ROWS, rows - warps_row)) lse[first_row + warps_row + own_row] = own_m * LN_2 + logf(own_l);

    // Lines 14 and 15: O_i is written.
#ifdef IN_ONE
    __syncwarp();
    store_rows_of_warp<WARP_ROWS, 4>(O + (first_row + warps_row) * D, tile + warps_row * ROW_BYTES, rows - warps_row);
#else
    __syncthreads();
    store_tile<BR, D <= 64 ? 8 : 4>(O + first_row * D, tile, rows);
#endif
}
