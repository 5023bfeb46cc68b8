// In which order blocks of rows start: those that visit most tiles of keys first, and of as many the later ones. spans.cuh and
// tiles.cuh are put before this text, or, where tiles are listed, visits.cuh and what goes with it. The Numba twin is in
// numba_longest_first.py, of masks that are runs.

#ifdef VISITS
#define VISITED const int *__restrict__ visits
#else
#define VISITED LIMITS
#endif

// The grid is (blocks of so many threads, lists of a sequence, sequences that differ); each thread ranks one block of rows.
extern "C" __global__ __launch_bounds__(THREADS) void longest_first(int *__restrict__ order, int q_len, int kv_len, VISITED)
{
    __shared__ int counts[THREADS];
    const int blocks = (q_len + BR - 1) / BR, own = blockIdx.x * THREADS + threadIdx.x;
    const size_t list = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
#ifdef VISITS
    const size_t room = 1 + (kv_len + BC - 1) / BC;
    const auto visits_of = [&](int block) { return visits[(list * blocks + block) * room]; };
#else
    LIMITS_IN_MEMORY
    const auto visits_of = [&](int block) {
        const int first_row = block * BR, last_row = min(first_row + BR, q_len) - 1;
        return (end_seen(last_row, q_len, kv_len, after) + BC - 1) / BC - first_seen(first_row, q_len, kv_len, before) / BC;
    };
#endif
    const int own_visits = own < blocks ? visits_of(own) : 0;

    int rank = 0;
    for (int first = 0; first < blocks; first += THREADS) {
        const int block = first + threadIdx.x;
        if (block < blocks) counts[threadIdx.x] = visits_of(block);
        __syncthreads();
        for (int i = 0; i < min(THREADS, blocks - first); ++i) {
            rank += counts[i] > own_visits || (counts[i] == own_visits && first + i > own);
        }
        __syncthreads();
    }
    if (own < blocks) order[list * blocks + rank] = own;
}
