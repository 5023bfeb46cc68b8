// A sweep of a block of rows over the keys: the scores of one tile of keys after the other, for algorithms that compute them
// several times. tiles.cuh is put before this text. The Numba twin is numba_sweep.py.

// For all K_j with a key that some row sees: S = score(tau Q_i K_j^T), then step(S, first_key, keys). K_j is in
// `K_tile`; a step may overwrite it.
template <class Seen, class Score, class Step>
__device__ __forceinline__ void sweep_keys(const float *Q_tile, float *K_tile, const stored *K_head, int first_row, int kv_len,
                                           float tau, const Score &score, const Seen &seen, const Step &step)
{
    for (int first_key = seen.first_key / BC * BC; first_key < seen.end_key; first_key += BC) {
        const int keys = min(BC, kv_len - first_key);

        // Load K_j, once no thread reads the tile before it any more.
        __syncthreads();
        load_tile<BC>(K_tile, K_head + (size_t)first_key * D, keys);
        __syncthreads();
        float S[TM][TN];
        multiply_Q_Kt(S, Q_tile, K_tile);
        scale_and_mask(S, tau, score, seen_in_tile(seen, first_row, first_key, keys), first_row, first_key);
        step(S, first_key, keys);
    }
}
