// In which order blocks that own keys add their parts of dQ to memory. The plan chooses one of the two types below as `Order`.
// The Numba twin is numba_order.py.

// Any: the last bits of the sums differ from run to run.
struct AnyOrder {
    static constexpr bool IS_FIXED = false;
    __device__ __forceinline__ int *turn(size_t, int, int) const { return nullptr; }
};

// That of the tiles of keys. For each ROWS rows of each head, memory has the number of the tile of keys whose turn it is. A block
// waits for the one with the tile before, which has started: blocks start in the order of their indices.
struct OrderOfKeys {
    static constexpr bool IS_FIXED = true;
    static constexpr int ROWS = 64;
    int *turns;
    __device__ __forceinline__ int *turn(size_t head, int row, int q_len) const
    {
        return turns + head * ((q_len + ROWS - 1) / ROWS) + row / ROWS;
    }
};

// What other blocks added before their turns ended is in memory for the asynchronous copies that follow.
__device__ __forceinline__ void wait_for_turn(const int *turn, int number)
{
    int now;
    do {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
    } while (now != number);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

// It is the turn of the tile with this number, once what this thread added by asynchronous copies is in memory.
__device__ __forceinline__ void pass_turn(int *turn, int number)
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(number) : "memory");
}
