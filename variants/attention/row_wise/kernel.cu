// Attention in one pass per row, without tiles: Rabe and Staats 2021, arXiv 2112.05682, section 3, with their v* and s* as o
// and l, KEYS keys at a step. What is loaded, multiplied and reduced is in _warps/warps.cuh; Limits, a type that the plan
// chooses, is in _features/. The Numba twin is numba_kernel.py.

extern "C" __global__ __launch_bounds__(THREADS) void row_wise(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, stored *__restrict__ O,
    float *__restrict__ lse, int q_len, int kv_len, int group, float tau, Limits limits)
{
    // The warp owns one row of Q and of O.
    const int row = blockIdx.x * BR + warp_index();
    if (row >= q_len) return;
    const size_t stat = head_index() * q_len + row;
    const stored *const K_head = K + kv_head_index(group) * kv_len * D, *const V_head = V + kv_head_index(group) * kv_len * D;
    const auto run = limits.of_sequence(blockIdx.z, q_len, kv_len);
    const int first_key = run.first(row), end_key = run.end(row);
    float q[1][EACH];
    load_rows(q, Q + stat * D, first_key < end_key);  // if it sees any key

    // o = 0, l = 0, m = -inf. Each lane has what its own keys add to l.
    float o[EACH], l = 0.0f, m = MINUS_INFINITY;
#pragma unroll
    for (int e = 0; e < EACH; ++e) o[e] = 0.0f;

    // All keys that the row sees.
    for (int key = first_key; key < end_key; key += KEYS) {
        // s_j = tau q.k_j, and -inf beyond the last key.
        float k[KEYS][EACH];
        load_rows(k, K_head + (size_t)key * D, end_key - key);
        const float dot = multiply_q_Kt(q, k);
        const float s = has_key(end_key - key) ? tau * dot : MINUS_INFINITY;

        // m = max(m, s_j), l = l exp(m_old - m) + exp(s_j - m).
        const float m_new = fmaxf(m, keys_max(s));
        const float correction = exp_below(m, m_new);
        const float p = exp_below(s, m_new);
        m = m_new;
        l = l * correction + p;

        // o = o exp(m_old - m) + exp(s_j - m) v_j.
        float v[KEYS][EACH];
        load_rows(v, V_head + (size_t)key * D, end_key - key);
#pragma unroll
        for (int e = 0; e < EACH; ++e) o[e] *= correction;
        add_p_V(o, p, v);
    }

    // O = o / l, and the log-sum-exp m + log(l). A row that sees nothing has l = 0: its O stays 0.
    l = keys_sum(l);
    const float inverse = l == 0.0f ? 0.0f : 1.0f / l;
#pragma unroll
    for (int e = 0; e < EACH; ++e) o[e] *= inverse;
    store_row(O + stat * D, o);
    if (lane_index() == 0) lse[stat] = m + logf(l);
}
