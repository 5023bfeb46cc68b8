// Safe softmax: Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 2. Line numbers are that algorithm's; V is
// columns here. The Numba twin is numba_kernel.py.

extern "C" __global__ void __launch_bounds__(THREADS)
    safe_softmax(const stored *__restrict__ X, stored *__restrict__ Y, int columns)
{
    // The block owns one row.
    const stored *x = X + row_start(columns);
    stored *y = Y + row_start(columns);

    // Lines 1 to 4: m = max x_k, each thread over its own columns, then over the block.
    float m = MINUS_INFINITY;
    for (int start = 0; start < columns; start += THREADS) m = fmaxf(m, element(x, start + threadIdx.x, columns));
    m = block_max(m);

    // Lines 5 to 8: d = sum exp(x_j - m).
    float d = 0.0f;
    for (int start = 0; start < columns; start += THREADS) {
        d += exp_below(element(x, start + threadIdx.x, columns), m);
    }
    d = block_sum(d);

    // Lines 9 to 11: y_i = exp(x_i - m) / d.
    for (int start = 0; start < columns; start += THREADS) {
        const int i = start + threadIdx.x;
        if (i < columns) narrow(exp_below(element(x, i, columns), m) / d, &y[i]);
    }
}
