// Where the rows of a block lie in Q, K, V and O: the heads of a dense layout (_features/layout.cuh) are runs, one after the
// other, and strides place the rows of others. splits.cuh and split_attention.cuh are put before this text.

// The rows of K or V of one head, each at a multiple of ALIGNED elements.
template <int ALIGNED> struct StridedKeys {
    const stored *first;
    long long stride;
    __device__ __forceinline__ const stored *row(int key) const { return first + key * stride; }
};

// The rows of Q of a group of heads from `first_row` on: row r is query r % q_len.
template <int ALIGNED> struct StridedQueries {
    const stored *first;
    long long head_stride, row_stride;
    int first_row, q_len;
    __device__ __forceinline__ const stored *row(int of_block) const
    {
        const unsigned row = first_row + of_block;
        return first + row / q_len * head_stride + row % q_len * row_stride;
    }
};

// K and V of one head of a sequence: one run each, or rows as far apart as set_strides says.
template <class> struct HeadOf {
    const stored *K_head, *V_head;
    __device__ __forceinline__ const stored *K(int key) const { return K_head + (size_t)key * D; }
    __device__ __forceinline__ const stored *V(int key) const { return V_head + (size_t)key * DV; }
    __device__ __forceinline__ void set_strides(const DenseLayout &) {}
};
template <int ALIGNED> struct HeadOf<StridedLayout<ALIGNED>> {
    const stored *K_head, *V_head;
    long long K_stride, V_stride;
    __device__ __forceinline__ StridedKeys<ALIGNED> K(int key) const { return {K_head + key * K_stride, K_stride}; }
    __device__ __forceinline__ StridedKeys<ALIGNED> V(int key) const { return {V_head + key * V_stride, V_stride}; }
    __device__ __forceinline__ void set_strides(const StridedLayout<ALIGNED> &layout)
    {
        K_stride = layout.K.row;
        V_stride = layout.V.row;
    }
};

// Its first key of the sequence if rows are strided. Else heads are runs, one after the other, from the first one on: in_runs
// is the number of the head among them.
template <class Own>
__device__ __forceinline__ const stored *first_of_K(const DenseLayout &, const stored *K, const Own &, unsigned)
{
    return K;
}
template <class Own>
__device__ __forceinline__ const stored *first_of_V(const DenseLayout &, const stored *V, const Own &, unsigned)
{
    return V;
}
__device__ __forceinline__ size_t in_runs(const DenseLayout &, size_t kv_head) { return kv_head; }
template <int ALIGNED, class Own>
__device__ __forceinline__ const stored *first_of_K(const StridedLayout<ALIGNED> &layout, const stored *K, const Own &own,
                                                    unsigned head)
{
    return layout.K_rows(K, 0, own.batch, head, own.key(0)).first;
}
template <int ALIGNED, class Own>
__device__ __forceinline__ const stored *first_of_V(const StridedLayout<ALIGNED> &layout, const stored *V, const Own &own,
                                                    unsigned head)
{
    return layout.V_rows(V, 0, own.batch, head, own.key(0)).first;
}
template <int ALIGNED> __device__ __forceinline__ size_t in_runs(const StridedLayout<ALIGNED> &, size_t) { return 0; }

template <class Own>
__device__ __forceinline__ const stored *query_rows(const DenseLayout &, const stored *Q, size_t first_stat, const Own &,
                                                    unsigned, int)
{
    return Q + first_stat * D;
}
template <int ALIGNED, class Own>
__device__ __forceinline__ StridedQueries<ALIGNED> query_rows(const StridedLayout<ALIGNED> &layout, const stored *Q, size_t,
                                                              const Own &own, unsigned first_head, int first_row)
{
    const auto of_head = layout.Q_rows(Q, 0, own.batch, first_head, own.row(0));
    return {of_head.first, layout.Q.head, layout.Q.row, first_row, own.q_len};
}

__device__ __forceinline__ stored *first_of(stored *rows) { return rows; }
template <int ALIGNED, int WIDTH>
__device__ __forceinline__ stored *first_of(const StridedRows<stored, ALIGNED, WIDTH> &rows)
{
    return rows.first;
}

// As copy_tile of splits.cuh, for rows that are no run: lanes have the same elements, or fewer where rows are aligned to fewer.
template <int LANES, int WIDTH, int ALIGNED, class Rows>
__device__ __forceinline__ void copy_rows(int tile, const Rows &source, int first, int end, int lane)
{
    constexpr int UNIT = ALIGNED < unit_over(WIDTH) ? ALIGNED : unit_over(WIDTH);
    constexpr int UNITS = WIDTH / UNIT, PITCH = (WIDTH + 63) / 64 * 128;
#pragma unroll 2
    for (int start = 0; start < BC * UNITS; start += LANES) {
        const int unit = start + lane, row = unit / UNITS, element = unit % UNITS * UNIT;
        if (BC * UNITS % LANES != 0 && unit >= BC * UNITS) break;
        const int to = tile + swizzled<PITCH>(row, element / CHUNK) + element % CHUNK * (int)sizeof(stored);
        const bool wanted = row >= first && row < end;
        const stored *const from = source.row(wanted ? row : 0) + element;
        if constexpr (UNIT > 1) {
            copy_async<UNIT * (int)sizeof(stored)>(shared_address(shared) + to, from, wanted);
        } else {
            *reinterpret_cast<stored *>(shared + to) = wanted ? *from : stored();
        }
    }
}

template <int LANES, int ALIGNED>
__device__ __forceinline__ void copy_tile(int tile, const StridedQueries<ALIGNED> &source, int first, int end, int lane)
{
    copy_rows<LANES, D, ALIGNED>(tile, source, first, end, lane);
}

template <int ALIGNED> struct StridedKeyTiles : KeyTiles<stored> {
    __device__ __forceinline__ explicit StridedKeyTiles(int lane) : KeyTiles<stored>(lane) {}
    __device__ __forceinline__ static void copy(int to, const StridedKeys<ALIGNED> &source, int first, int end, int lane,
                                                bool is_K)
    {
        if (D == DV || is_K) {
            copy_rows<32, D, ALIGNED>(to, source, first, end, lane);
        } else {
            copy_rows<32, DV, ALIGNED>(to, source, first, end, lane);
        }
    }
};
template <int ALIGNED> StridedKeyTiles<ALIGNED> tiles_of(const StridedKeys<ALIGNED> &);
