// Keys of a split that lie in pages. The block reads where all of its pages lie before it copies any key.
//
// Compile-time parameters besides those of splits.cuh: PAGE (rows of a page). The plan chooses `Window` (window.cuh) and `Pool`
// (pools.cuh).

static_assert(PAGE % BC == 0, "a tile of keys lies in one page");
constexpr int PAGES = (SPLIT - 1) / PAGE + 2;  // that the keys of a split may lie in
static_assert(PAGES <= 2 * THREADS, "two entries of the table per thread");

// Entries of the table -> shared memory. All of them at once: a copy would wait for its entry otherwise.
__device__ __forceinline__ void load_pages(int (&pages)[PAGES], const int *entries, int count)
{
#pragma unroll
    for (int i = 0; i < (PAGES + THREADS - 1) / THREADS; ++i) {
        const int at = i * THREADS + (int)threadIdx.x;
        if (at < count) pages[at] = entries[at];
    }
    __syncthreads();
}

// The keys of a split, from `split_first` to before `end`: pages[n] is where page first_page + n lies.
struct KeysOfPages : FirstKey<Window> {
    Pool K_pages, V_pages;
    const int *pages;
    int split_first, end, first_page, kv_head, kv_heads;

    __device__ __forceinline__ int first_tile(int warp) const { return first_tile_from(split_first + warp * BC, WARPS * BC); }
    __device__ __forceinline__ int tile_after(int key) const { return key + WARPS * BC; }
    __device__ __forceinline__ auto rows_from(const Pool &pool, int key) const
    {
        const size_t place = place_of_page(pool, pages[key / PAGE - first_page], kv_heads, kv_head);
        return rows_of_place(pool, place, kv_head, key % PAGE);
    }
    __device__ __forceinline__ auto K(int key) const { return rows_from(K_pages, key); }
    __device__ __forceinline__ auto V(int key) const { return rows_from(V_pages, key); }
};
