// Splits of keys put together, of kernels of latent attention. _tiles/tiles.cuh is put before this text; D is the length of
// rows of O, SPLIT that of splits. Limits, a type that the plan chooses, is in _features/.

// The splits of a row put together, a block per row: m = max m_s, O = sum exp(m_s - m) O_s over l = sum exp(m_s - m) l_s,
// one split after the other. What a row sees nothing of is not read: it may not have been written.
extern "C" __global__ __launch_bounds__(THREADS) void mla_combine(
    const float *__restrict__ O_split, const float *__restrict__ l_split, const float *__restrict__ m_split,
    const int *__restrict__ lengths, stored *__restrict__ O, float *__restrict__ lse, int q_len, int most_splits,
    Limits limits)
{
    constexpr int PARTS = (D + THREADS - 1) / THREADS;  // elements of O per thread
    const int sequence = blockIdx.y, row = blockIdx.x, sequence_rows = gridDim.x, t = thread_index();
    const int end = limits.of_sequence(sequence, q_len, lengths[sequence]).end(row % q_len);
    float O_row[PARTS] = {}, l = 0.0f, m = MINUS_INFINITY;
    for (int split = 0; split * SPLIT < end; ++split) {
        const size_t stat = ((size_t)sequence * most_splits + split) * sequence_rows + row;
        const float l_s = l_split[stat], m_s = m_split[stat];
        const float m_new = fmaxf(m, m_s), correction = exp_below(m, m_new), weight = exp_below(m_s, m_new);
        m = m_new;
        l = correction * l + weight * l_s;
#pragma unroll
        for (int j = 0; j < PARTS; ++j) {
            const int e = t + THREADS * j;
            if (e < D) O_row[j] = correction * O_row[j] + weight * O_split[stat * D + e];
        }
    }

    // A row that saw nothing has l = 0 and m = -inf: its O is 0, its log-sum-exp -inf.
    const size_t output_row = (size_t)sequence * sequence_rows + row;
    const float inverse = l == 0.0f ? 0.0f : 1.0f / l;
#pragma unroll
    for (int j = 0; j < PARTS; ++j) {
        const int e = t + THREADS * j;
        if (e < D) narrow(O_row[j] * inverse, &O[output_row * D + e]);
    }
    if (t == 0) lse[output_row] = m + logf(l);
}
