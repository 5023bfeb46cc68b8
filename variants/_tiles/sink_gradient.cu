// The gradient of sinks: that of head h is the sum of -exp(sink - L_i) D_i over the rows of the head, in all sequences. A sink
// is a key without a value, so dP of it is 0, and dS is -P D. L is lse, D = rowsum(dO o O). The Numba twin is
// numba_sink_gradient.py.
//
// Compile-time parameter: THREADS. A block has a head, and sums in a fixed order.

extern "C" __global__ __launch_bounds__(THREADS) void sink_gradient(
    const float *__restrict__ sinks, const float *__restrict__ lse, const float *__restrict__ delta,
    float *__restrict__ dsinks, int batch, int q_len)
{
    __shared__ float sums[THREADS / 32];
    const int head = blockIdx.x, t = threadIdx.x;
    const float sink = __ldg(sinks + head);
    float sum = 0.0f;
    for (int b = 0; b < batch; ++b) {
        const size_t first = ((size_t)b * gridDim.x + head) * q_len;
        for (int row = t; row < q_len; row += THREADS) {
            // A row that sees no key has an L_i of -infinity only if the head has no sink: P = 0.
            const float L = lse[first + row];
            sum -= __expf(sink - (L == MINUS_INFINITY ? 0.0f : L)) * delta[first + row];
        }
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffff, sum, apart);
    if (t % 32 == 0) sums[t / 32] = sum;
    __syncthreads();
    if (t == 0) {
#pragma unroll
        for (int warp = 1; warp < THREADS / 32; ++warp) sum += sums[warp];
        dsinks[head] = sum;
    }
}
