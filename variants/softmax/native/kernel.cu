// Softmax without the maximum: Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 1. Line numbers are that
// algorithm's; V is columns here. The Numba twin is numba_kernel.py.

extern "C" __global__ void __launch_bounds__(THREADS)
    native_softmax(const stored *__restrict__ X, stored *__restrict__ Y, int columns)
{
    // The block owns one row.
    const stored *x = X + row_start(columns);
    stored *y = Y + row_start(columns);

    // Lines 1 to 4: d = sum exp(x_j), each thread over its own columns, then over the block.
    float d = 0.0f;
    for (int start = 0; start < columns; start += THREADS) d += expf(element(x, start + threadIdx.x, columns));
    d = block_sum(d);

    // Lines 5 to 7: y_i = exp(x_i) / d.
    for (int start = 0; start < columns; start += THREADS) {
        const int i = start + threadIdx.x;
        if (i < columns) narrow(expf(element(x, i, columns)) / d, &y[i]);
    }
}
