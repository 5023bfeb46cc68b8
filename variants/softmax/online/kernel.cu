// Safe softmax with online normalizer: Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 3. Line numbers are that
// algorithm's; V is columns here. The Numba twin is numba_kernel.py.

// Equation 4: the maximum and the sum of two sets of columns. Either may be empty: m = -inf, d = 0.
__device__ __forceinline__ void combine(float &m, float &d, float m_other, float d_other)
{
    const float m_both = fmaxf(m, m_other);
    d = d * exp_below(m, m_both) + d_other * exp_below(m_other, m_both);
    m = m_both;
}

// m and d of the whole block, for every thread, in the same bits. Lanes that combine each other's may differ in the
// last bit of d, so all take what the first lane of each warp has left.
__device__ __forceinline__ void block_combine(float &m, float &d)
{
    __shared__ float m_parts[WARPS], d_parts[WARPS];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        const float m_other = __shfl_xor_sync(0xffffffff, m, distance);
        const float d_other = __shfl_xor_sync(0xffffffff, d, distance);
        combine(m, d, m_other, d_other);
    }
    if (threadIdx.x % 32 == 0) {
        m_parts[threadIdx.x / 32] = m;
        d_parts[threadIdx.x / 32] = d;
    }
    __syncthreads();
    m = m_parts[0];
    d = d_parts[0];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) combine(m, d, m_parts[warp], d_parts[warp]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    online_softmax(const stored *__restrict__ X, stored *__restrict__ Y, int columns)
{
    // The block owns one row.
    const stored *x = X + row_start(columns);
    stored *y = Y + row_start(columns);

    // Lines 1 and 2: m = -inf, d = 0.
    float m = MINUS_INFINITY;
    float d = 0.0f;

    // Line 3: each thread over its own columns.
    for (int start = 0; start < columns; start += THREADS) {
        // Lines 4 and 5: m = max(m, x_j), d = d exp(m_old - m) + exp(x_j - m).
        const float x_j = element(x, start + threadIdx.x, columns);
        const float m_new = fmaxf(m, x_j);
        d = d * exp_below(m, m_new) + exp_below(x_j, m_new);
        m = m_new;
    }
    block_combine(m, d);

    // Lines 7 to 9: y_i = exp(x_i - m) / d.
    for (int start = 0; start < columns; start += THREADS) {
        const int i = start + threadIdx.x;
        if (i < columns) narrow(exp_below(element(x, i, columns), m) / d, &y[i]);
    }
}
