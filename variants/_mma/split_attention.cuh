// Flash-Decoding's step 2 for one block: 16 rows meet the keys of one split. splits.cuh is put before this text; kernel.cu of
// attention/split_kv and of paged_attention/paged_split_kv say which rows and keys these are.
//
// Each warp goes its own way over every WARPS-th tile of keys, with an O, l and m of its own and its own ring of slots in
// shared memory. It waits for its own copies, and for no other warp until the end.
//
// `keys`, the block's keys, has
//     first, end           the first key and the end of those that a row sees
//     skipped(key)         how many keys of the tile that begins with `key` are before the first
//     first_tile(warp)     the first key of the warp's first tile
//     tile_after(key)      the first key of the warp's next tile
//     K(key), V(key)       where they begin in memory
// and `seen`, which keys rows g and g + 8 of the lane (i = 0 and 1) see,
//     at(key)              the same, counted from that key
//     sees(i, k)
//     all_see(first, end)  whether all rows of the block see these keys

// What a warp has of rows g and g + 8. l is that of the lane's own keys.
struct Rows {
    Output O;
    float l[2], m[2];
    // Where O[n][2 i] lies in its row, and O[n][2 i + 1] behind it.
    __device__ __forceinline__ static int column(int n, int lane) { return 8 * n + lane % 4 * 2; }
};

// Tiles of K and V that lie in slots as Q does. Tiles of 8 bits, whose elements have another type, are another specialization, in
// _paged/e4m3_tiles.cuh.
template <class Element> struct KeyTiles {
    typedef ::Rows Rows;
    enum : int { SLOT = SLOT_BYTES, COUNT = SLOTS };  // bytes of a slot, and slots of a warp
    unsigned by_row, V_by_row, by_column;

    // The four matrices of a 16 x 16 tile in the order of rows, for Q and for V (transposed on its way), or of columns.
    __device__ __forceinline__ explicit KeyTiles(int lane)
    {
        by_row = shared_address(shared) + swizzled<ROW_BYTES>(lane % 16, lane / 16);
        V_by_row = shared_address(shared) + swizzled<V_ROW_BYTES>(lane % 16, lane / 16);
        by_column = shared_address(shared) + swizzled<ROW_BYTES>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    }
    __device__ __forceinline__ static void copy(int to, const Element *source, int first, int end, int lane, bool is_K)
    {
        if (D == DV || is_K) {
            copy_tile<32>(to, source, first, end, lane);
        } else {
            copy_tile<32, DV>(to, source, first, end, lane);
        }
    }
    __device__ __forceinline__ static void arrange_Q(int, int) {}
    __device__ __forceinline__ void multiply_Q_Kt(ScoreTile &S, int Q_tile, int slot) const
    {
        ::multiply_Q_Kt(S, by_row + Q_tile, by_column + slot);
    }
    __device__ __forceinline__ void add_P_V(Output &O, const ScoreTile &P, int slot) const
    {
        ::add_P_V(O, P, V_by_row + slot);
    }
    __device__ __forceinline__ static PairsInTile pairs(int slot, int lane) { return {slot, lane}; }
    __device__ __forceinline__ static void sort_columns(Output &) {}
};

// The type of tiles whose keys lie where `keys` says.
template <class Element> KeyTiles<Element> tiles_of(const Element *);
template <class Keys> using TilesOf = decltype(tiles_of(static_cast<const Keys *>(nullptr)->K(0)));

// A warp's ring: K and V of one tile after the other, COUNT - 1 copies ahead of where they are read.
template <class Keys> struct Ring {
    typedef TilesOf<Keys> Tiles;
    const Keys &keys;
    int begin, lane;
    int slot;                // which is read next
    int copied, copied_key;  // how many tiles of K or V, and the next one's first key

    __device__ __forceinline__ Ring(const Keys &keys, int warp, int lane, int first_key)
        : keys(keys), begin(warp * RING_BYTES), lane(lane), slot(begin), copied(0), copied_key(first_key)
    {
    }

    __device__ __forceinline__ void copy_next()
    {
        if (copied_key < keys.end) {
            const auto source = copied % 2 == 0 ? keys.K(copied_key) : keys.V(copied_key);
            const int to = begin + copied % Tiles::COUNT * Tiles::SLOT;
            const int first = keys.skipped(copied_key), end = keys.end - copied_key;
            Tiles::copy(to, source, first, end, lane, copied % 2 == 0);
        }
        commit_copies();
        if (copied++ % 2 == 1) copied_key = keys.tile_after(copied_key);
    }

    __device__ __forceinline__ void keep_step(const Keys &, int) const {}  // warps go their own way

    // The slot that is read next has come; the one before it, which all lanes have read, is filled anew.
    __device__ __forceinline__ void wait_for_slot()
    {
        wait_for_copies<Tiles::COUNT - 2>();
        __syncwarp();
        copy_next();
    }
    __device__ __forceinline__ void next_slot()
    {
        slot = slot + Tiles::SLOT == begin + Tiles::COUNT * Tiles::SLOT ? begin : slot + Tiles::SLOT;
    }
};

// S = score(tau S) where the row sees the key, -inf elsewhere: chosen, not added, so that NaN behind the mask stays there.
template <class Score, class Seen>
__device__ __forceinline__ void scale_and_mask(ScoreTile &S, float tau, const Score (&score)[2], const Seen &seen,
                                               const int (&query)[2], int first_key, int lane)
{
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int k = 8 * n + lane % 4 * 2 + e % 2, i = e / 2;
            S[n][e] = seen.sees(i, k) ? score[i](tau * S[n][e], query[i], first_key + k) : MINUS_INFINITY;
        }
}

// What is subtracted from scores, and with that P = exp(S - m): the largest score so far. Another type is in kernel.cu of
// attention/unified_max.
struct RunningMaximum {
    __device__ __forceinline__ float first_m() const { return MINUS_INFINITY; }

    // m = max(m, rowmax(S)), P = exp(S - m), l = exp(m_old - m) l + rowsum(P), O = exp(m_old - m) O. S becomes P.
    __device__ __forceinline__ void exponentiate(Rows &rows, ScoreTile &S) const
    {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float largest = fmaxf(fmaxf(S[0][2 * i], S[0][2 * i + 1]), fmaxf(S[1][2 * i], S[1][2 * i + 1]));
            const float m_new = fmaxf(rows.m[i], quad_max(largest));
            const float correction = exp_below(rows.m[i], m_new);
            rows.m[i] = m_new;
            rows.l[i] *= correction;
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 2 * i; e < 2 * i + 2; ++e) rows.l[i] += S[n][e] = exp_below(S[n][e], m_new);
#pragma unroll
            for (int n = 0; n < TD; ++n) {
                rows.O[n][2 * i] *= correction;
                rows.O[n][2 * i + 1] *= correction;
            }
        }
    }
};

// The warps' O, l and m become the block's, in the same way: a share of the keys each instead of a tile. They lie in shared
// memory then, O and l relative to one maximum, and are to be summed over the warps.
template <class Own> __device__ __forceinline__ void share_rows(const Own &own, int t = threadIdx.x)
{
    const int warp = t / 32, lane = t % 32;
    float *const l_rows = reinterpret_cast<float *>(shared + L_ROWS);
    float *const m_rows = reinterpret_cast<float *>(shared + M_ROWS);
    if (lane % 4 == 0) {
        m_rows[warp * BR + lane / 4] = own.m[0];
        m_rows[warp * BR + lane / 4 + 8] = own.m[1];
    }
    __syncthreads();  // and no warp reads a slot any more
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = lane / 4 + 8 * i;
        float m_block = MINUS_INFINITY;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) m_block = fmaxf(m_block, m_rows[w * BR + row]);
        const float correction = exp_below(own.m[i], m_block), l_row = quad_sum(own.l[i]);
        if (lane % 4 == 0) l_rows[warp * BR + row] = l_row * correction;
#pragma unroll
        for (int n = 0; n < TD; ++n) {
            *reinterpret_cast<float2 *>(O_element(warp, row, Own::column(n, lane))) =
                make_float2(own.O[n][2 * i] * correction, own.O[n][2 * i + 1] * correction);
        }
    }
    __syncthreads();
}

// Element e of the block's rows, which lie one after the other, not divided by l yet.
__device__ __forceinline__ float shared_O(int e)
{
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum += *O_element(w, e / DV, e % DV);
    return sum;
}

__device__ __forceinline__ float shared_l(int row)
{
    float l_block = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) l_block += reinterpret_cast<const float *>(shared + L_ROWS)[w * BR + row];
    return l_block;
}

__device__ __forceinline__ float shared_m(int row)
{
    float m_block = MINUS_INFINITY;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) m_block = fmaxf(m_block, reinterpret_cast<const float *>(shared + M_ROWS)[w * BR + row]);
    return m_block;
}

// O_split, l_split and m_split: of the block's first row.
template <class Own>
__device__ __forceinline__ void put_warps_together(const Own &own, float *O_split, float *l_split, float *m_split, int rows)
{
    share_rows(own);
    const int t = threadIdx.x;
#pragma unroll 1
    for (int e = t; e < rows * DV; e += THREADS) O_split[e] = shared_O(e);
    if (t < rows) {
        l_split[t] = shared_l(t);
        m_split[t] = shared_m(t);
    }
}

// Attention of the Q in `Q_tile` over `keys`, whose first tiles are under way in `ring`. O is not divided by l yet. `query`: of
// rows g and g + 8.
template <class Maximum = RunningMaximum, class Ring, class Keys, class Seen, class Score>
__device__ __forceinline__ auto attend(int Q_tile, float tau, Ring &ring, const Keys &keys, const Seen &seen,
                                       const Score (&score)[2], const int (&query)[2], const Maximum &maximum = {},
                                       int t = threadIdx.x)
{
    typedef typename Ring::Tiles Tiles;
    const int lane = t % 32, first_key = keys.first_tile(t / 32);
    const Tiles tiles(lane);
    Rows own = {{}, {}, {maximum.first_m(), maximum.first_m()}};
#pragma unroll 1
    for (int key = first_key, tile = 0; key < keys.end; key = keys.tile_after(key), ++tile) {
        ring.keep_step(keys, tile);
        const auto seen_here = seen.at(key);

        // S = tau Q K^T.
        ScoreTile S;
        ring.wait_for_slot();
        tiles.multiply_Q_Kt(S, Q_tile, ring.slot);
        ring.next_slot();
        scale_and_mask(S, tau, score, seen_here, query, key, lane);

        // P = exp(S - m), and l and m.
        maximum.exponentiate(own, S);

        // O = O + P V.
        ring.wait_for_slot();
        if (seen.all_see(max(key, keys.first), min(key + BC, keys.end))) {
            tiles.add_P_V(own.O, S, ring.slot);
        } else {
            add_P_V_where_seen(own.O, S, Tiles::pairs(ring.slot, lane), seen_here, lane);
        }
        ring.next_slot();
    }
    Tiles::sort_columns(own.O);
    return typename Tiles::Rows{own};
}

// Rows of Q and K are not copied as far as they are multiplied: zeros in so many bytes, before the copies.
__device__ __forceinline__ void clear_padding(int bytes, int t)
{
    if constexpr (D % 16 != 0) {
        for (int i = t; i < bytes / 16; i += THREADS) reinterpret_cast<uint4 *>(shared)[i] = uint4();
        __syncthreads();
    }
}

// Attention of so many `rows` of Q, which copy_tile takes, over the split on its own, as `attend`.
template <class Maximum = RunningMaximum, class Queries, class Keys, class Seen, class Score>
__device__ __forceinline__ auto attend_to_split(const Queries &Q, int rows, float tau, const Keys &keys, const Seen &seen,
                                                const Score (&score)[2], const int (&query)[2],
                                                const Maximum &maximum = {}, int t = threadIdx.x)
{
    typedef TilesOf<Keys> Tiles;
    clear_padding(Q_ROWS_END, t);
    Ring<Keys> ring(keys, t / 32, t % 32, keys.first_tile(t / 32));
    copy_tile<THREADS>(Q_TILE, Q, 0, rows, t);
    commit_copies();
#pragma unroll 1
    for (int i = 0; i < Tiles::COUNT - 1; ++i) ring.copy_next();
    wait_for_copies<Tiles::COUNT - 1>();
    __syncthreads();  // all warps have copied of Q
    Tiles::arrange_Q(Q_TILE, t);
    return attend(Q_TILE, tau, ring, keys, seen, score, query, maximum, t);
}
