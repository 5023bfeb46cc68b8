// What a warp has of O_i and L_i at the end, divided and written. registers.cuh is put before this text; line numbers are those
// of kernel.cu.
//
// A sink is a key more, without a value: l_i = exp(m_i - m) l_i + exp(sink - m), m the larger of both.

// The rows of O from one of the block's on are O_from(row).
// Where there are registers for it (WARPS_WRITE), each warp writes its own rows, as soon as it has met its keys; else all write
// all. Warps of 32 rows make the same requests then as all together.
// The block's first row is `first_row` of all heads' rows, and so many `rows` from there on are the head's. They are gathered
// in `tile`, where Q_i was: each warp alone has read its part until now, which is another part if rows have another length.
template <class Sink, bool WARPS_WRITE, class RowsOfO>
__device__ __forceinline__ void write_rows(RowsOfO O_from, float *__restrict__ lse, size_t first_row, int rows,
                                           const Rows &own, unsigned char *tile, float kept_factor, float sink_logit)
{
    static_assert(!WARPS_WRITE || TM == 2, "a warp's rows are whole requests of 32 units");

    // Line 12: O_i = diag(l_i)^-1 O_i. A row that saw nothing has l = 0: its O stays 0.
    if constexpr (V_ROW_BYTES == ROW_BYTES) {
        __syncwarp();
    } else {
        __syncthreads();
    }
    const int lane = threadIdx.x % 32, warps_row = threadIdx.x / 32 * WARP_ROWS;
    const float sink = LOG2_E * sink_logit;
    float own_m = 0.0f, own_l = 0.0f;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = warps_row + 16 * i + 8 * h + lane / 4;
            float m = own.m[i][h], l = quad_sum(own.l[i][h]), correction = 1.0f;
            if constexpr (Sink::WEIGHT > 0.0f) {
                m = fmaxf(m, sink);
                const float minus_m = m == MINUS_INFINITY ? 0.0f : -m;
                correction = exp2_approx(own.m[i][h] + minus_m);
                l = correction * l + exp2_approx(sink + minus_m);
            }
            const float inverse = l == 0.0f ? 0.0f : kept_factor * correction / l;
#pragma unroll
            for (int j = 0; j < TD; ++j) {
                unsigned char *const at = tile + swizzled<V_ROW_BYTES>(row, j) + lane % 4 * 4;
                *reinterpret_cast<unsigned *>(at) = packed(own.O[i][j][2 * h] * inverse, own.O[i][j][2 * h + 1] * inverse);
            }
            if (lane % 4 == 2 * i + h) {
                own_m = m;
                own_l = l;
            }
        }
    // Lines 13 to 15: L_i = m_i + log(l_i), which is -inf where nothing was seen, and both are written. Of the lanes that share
    // rows each has one of these; warps of 16 rows go together, so that requests are of 32 rows.
    const int own_row = lane % 4 * 8 + lane / 4;
    const float L = own_m * LN_2 + logf(own_l);
    if constexpr (TM == 2) {
        if (own_row < rows - warps_row) lse[first_row + warps_row + own_row] = L;
    } else {
        __shared__ float L_tile[BR];
        if (own_row < WARP_ROWS) L_tile[warps_row + own_row] = L;
        __syncthreads();
        if (threadIdx.x < rows) lse[first_row + threadIdx.x] = L_tile[threadIdx.x];
    }
    if constexpr (WARPS_WRITE) {
        __syncwarp();
        store_rows_of_warp<WARP_ROWS, 4, DV>(O_from(warps_row), tile + warps_row * V_ROW_BYTES, rows - warps_row);
    } else {
        if constexpr (TM == 2) __syncthreads();
        store_tile<BR, DV <= 64 ? 8 : 4, DV>(O_from(0), tile, rows);
    }
}
