// In which order blocks of rows start: those that visit most tiles of keys first, and of as many the later ones.
// _features/limits.cuh is put before this text. The Numba twin is numba_longest_first.py, for masks that are runs.
//
// Compile-time parameters: BR and BC (rows and keys per tile).

constexpr int THREADS = 128;

// How many tiles a block of rows visits, as the runs of its rows tell.
struct VisitedByLimits {
    Limits limits;
    __device__ __forceinline__ int operator()(int sequence, size_t /*list*/, int block, int q_len, int kv_len) const
    {
        const auto run = limits.of_sequence(sequence, q_len, kv_len);
        const int first_row = block * BR, last_row = min(first_row + BR, q_len) - 1;
        return (run.end(last_row) + BC - 1) / BC - run.first(first_row) / BC;
    }
};

// The same, as the lists of tiles tell (_features/tile_order.cuh).
struct VisitedByLists {
    const int *visits;
    __device__ __forceinline__ int operator()(int, size_t list, int block, int q_len, int kv_len) const
    {
        const int blocks = (q_len + BR - 1) / BR;
        return __ldg(visits + (list * blocks + block) * (1 + (kv_len + BC - 1) / BC));
    }
};

// Each thread of the grid (blocks of so many threads, lists of a sequence, sequences that differ) ranks one block of rows.
template <class Visited>
__device__ __forceinline__ void rank_blocks(int *__restrict__ order, int q_len, int kv_len, const Visited &visited)
{
    __shared__ int counts[THREADS];
    const int blocks = (q_len + BR - 1) / BR, own = blockIdx.x * THREADS + threadIdx.x;
    const size_t list = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
    const int own_visits = own < blocks ? visited(blockIdx.z, list, own, q_len, kv_len) : 0;

    int rank = 0;
    for (int first = 0; first < blocks; first += THREADS) {
        const int block = first + threadIdx.x;
        if (block < blocks) counts[threadIdx.x] = visited(blockIdx.z, list, block, q_len, kv_len);
        __syncthreads();
        for (int i = 0; i < min(THREADS, blocks - first); ++i) {
            rank += counts[i] > own_visits || (counts[i] == own_visits && first + i > own);
        }
        __syncthreads();
    }
    if (own < blocks) order[list * blocks + rank] = own;
}

extern "C" __global__ __launch_bounds__(THREADS) void longest_first(int *order, int q_len, int kv_len, Limits limits)
{
    rank_blocks(order, q_len, kv_len, VisitedByLimits{limits});
}

extern "C" __global__ __launch_bounds__(THREADS) void longest_list_first(int *order, int q_len, int kv_len, const int *visits)
{
    rank_blocks(order, q_len, kv_len, VisitedByLists{visits});
}
