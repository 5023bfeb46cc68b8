// Attention with the softmax of the definition, without a maximum: Rabe and Staats 2021, arXiv 2112.05682, section 2, with
// their v* and s* as o and l, KEYS keys at a step. What is loaded, multiplied and reduced is in _warps/warps.cuh; Limits, a
// type that the plan chooses, is in _features/. The Numba twin is numba_kernel.py.

extern "C" __global__ __launch_bounds__(THREADS) void native(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, stored *__restrict__ O,
    int q_len, int kv_len, int group, float tau, Limits limits)
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

    // o = 0, l = 0. Each lane has what its own keys add to l.
    float o[EACH], l = 0.0f;
#pragma unroll
    for (int e = 0; e < EACH; ++e) o[e] = 0.0f;

    // All keys that the row sees.
    for (int key = first_key; key < end_key; key += KEYS) {
        // p_j = exp(tau q.k_j), and 0 beyond the last key.
        float k[KEYS][EACH];
        load_rows(k, K_head + (size_t)key * D, end_key - key);
        const float dot = multiply_q_Kt(q, k);
        const float p = has_key(end_key - key) ? __expf(tau * dot) : 0.0f;

        // l = l + p_j, o = o + p_j v_j.
        l += p;
        float v[KEYS][EACH];
        load_rows(v, V_head + (size_t)key * D, end_key - key);
        add_p_V(o, p, v);
    }

    // O = o / l. A row that sees nothing has l = 0: its O stays 0.
    l = keys_sum(l);
    const float inverse = l == 0.0f ? 0.0f : 1.0f / l;
#pragma unroll
    for (int e = 0; e < EACH; ++e) o[e] *= inverse;
    store_row(O + stat * D, o);
}
