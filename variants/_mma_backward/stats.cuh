// Where L and D of rows lie. The plan chooses one of the two types below as `Stats`. The Numba twin is numba_stats.py.

// One row after the other, of all heads.
struct StatsOfRows {
    static __device__ __forceinline__ int rows(int q_len) { return q_len; }
};

// Each head has whole tiles of rows, as contiguous copies need them.
struct StatsOfTiles {
    static constexpr int ROWS = 128;
    static __device__ __forceinline__ int rows(int q_len) { return (q_len + ROWS - 1) / ROWS * ROWS; }
};
