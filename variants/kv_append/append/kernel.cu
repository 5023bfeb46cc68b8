// Appends keys and values to a paged cache, as append_paged_kv_cache of FlashInfer and reshape_and_cache of vLLM do. The Numba
// twin is numba_kernel.py.
//
// Compile-time parameters: Vector (the widest type that divides a row), ROW (vectors of a row), PAGE (rows of a page), THREADS.

extern "C" __global__ void __launch_bounds__(THREADS)
    append(const Vector *__restrict__ K_new, const Vector *__restrict__ V_new, const int *__restrict__ starts,
           const int *__restrict__ table, const int *__restrict__ lengths, Vector *__restrict__ K, Vector *__restrict__ V,
           int tokens, int sequences, int farthest, int table_len, int kv_heads)
{
    // Line 1: a warp has one new token.
    const int token = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (token >= tokens) return;

    // Line 2: b = max {b : starts[b] <= token}, by halves: `farthest` is the largest power of two below `sequences`.
    // starts[sequences] is beyond all tokens.
    int sequence = 0;
    for (int step = farthest; step > 0; step /= 2) {
        if (starts[min(sequence + step, sequences)] <= token) sequence += step;
    }

    // Line 3: j = lengths[b] - (starts[b + 1] - token). Lengths count the new tokens.
    const int key = lengths[sequence] - (starts[sequence + 1] - token);

    // Line 4: the slot of key j is row j % PAGE of page table[b, j / PAGE].
    const int page = table[(size_t)sequence * table_len + key / PAGE], row = key % PAGE;

    // Line 5: K[page, h, row] = K_new[token, h] and V[page, h, row] = V_new[token, h] for all heads h. All lanes take as many
    // steps, so that they stay together: those of a request have consecutive vectors.
    const int vectors = kv_heads * ROW;
    const size_t first = (size_t)token * vectors;
    for (int start = 0; start < vectors; start += 32) {
        const int i = start + lane, head = i / ROW;
        const size_t to = (((size_t)page * kv_heads + head) * PAGE + row) * ROW + i % ROW;
        if (i < vectors) {
            K[to] = K_new[first + i];
            V[to] = V_new[first + i];
        }
    }
}
