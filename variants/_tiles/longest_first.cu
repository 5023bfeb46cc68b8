// In which order blocks of rows start: those that visit most tiles of keys first, and of as many the later ones. spans.cuh and
// tiles.cuh are put before this text. The Numba twin is in numba_longest_first.py.

// The grid is (blocks of so many threads, 1, batch); each thread ranks one block of rows.
extern "C" __global__ __launch_bounds__(THREADS) void longest_first(int *__restrict__ order, int q_len, int kv_len, LIMITS)
{
    __shared__ int visits[THREADS];
    LIMITS_IN_MEMORY
    const int count = (q_len + BR - 1) / BR, own = blockIdx.x * THREADS + threadIdx.x;
    const auto visits_of = [&](int block) {
        const int first_row = block * BR, last_row = min(first_row + BR, q_len) - 1;
        return (end_seen(last_row, q_len, kv_len, after) + BC - 1) / BC - first_seen(first_row, q_len, kv_len, before) / BC;
    };
    const int own_visits = own < count ? visits_of(own) : 0;

    int rank = 0;
    for (int first = 0; first < count; first += THREADS) {
        const int block = first + threadIdx.x;
        if (block < count) visits[threadIdx.x] = visits_of(block);
        __syncthreads();
        for (int i = 0; i < min(THREADS, count - first); ++i) {
            rank += visits[i] > own_visits || (visits[i] == own_visits && first + i > own);
        }
        __syncthreads();
    }
    if (own < count) order[(size_t)blockIdx.z * count + rank] = own;
}
