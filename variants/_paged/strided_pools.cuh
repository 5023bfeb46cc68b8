// Pools whose pages, heads and rows have strides of their own, in elements; K and V each have theirs. pools.cuh and
// _features/layout.cuh are put before this text. Numba passes arrays that know their strides.

struct PoolStrides {
    long long page, head, row;
};

// As `Pool`, one of pools.cuh, in other places. All rows begin at a multiple of ALIGNED elements.
template <class Pool, int ALIGNED> struct StridedPool {
    Pool stored_as;
    PoolStrides strides;
};
template <class Pool, int ALIGNED>
__device__ __forceinline__ float times_scale(float x, const StridedPool<Pool, ALIGNED> &pool, int kv_head)
{
    return times_scale(x, pool.stored_as, kv_head);
}
template <class Rows, class Pool, int ALIGNED>
__device__ __forceinline__ void scale_O(Rows &rows, const StridedPool<Pool, ALIGNED> &V, int kv_head)
{
    scale_O(rows, V.stored_as, kv_head);
}

// A key/value head in the pool's first page, and its rows in another.
template <class Element, int ALIGNED> struct StridedHead {
    const Element *first;
    long long page, row;
};
// Member by member, in registers: one of two objects has an address.
template <class Element, int ALIGNED>
__device__ __forceinline__ StridedHead<Element, ALIGNED> chosen(bool of_V, const StridedHead<Element, ALIGNED> &V,
                                                                const StridedHead<Element, ALIGNED> &K)
{
    return {of_V ? V.first : K.first, of_V ? V.page : K.page, of_V ? V.row : K.row};
}
template <class Element, int ALIGNED>
__device__ __forceinline__ StridedRows<const Element, ALIGNED, D> rows_of_head(const StridedHead<Element, ALIGNED> &head, int page,
                                                                               int, int row)
{
    return {head.first + page * head.page + row * head.row, head.row};
}

// All heads: + a number of one is that head.
template <class Element, int ALIGNED> struct StridedElements {
    const Element *first;
    PoolStrides strides;
    __device__ __forceinline__ StridedHead<Element, ALIGNED> operator+(size_t kv_head) const
    {
        return {first + kv_head * strides.head, strides.page, strides.row};
    }
};
template <int ALIGNED, class Element>
__device__ __forceinline__ StridedElements<Element, ALIGNED> strided(const Element *first, const PoolStrides &strides)
{
    return {first, strides};
}
template <class Pool, int ALIGNED> __device__ __forceinline__ auto elements(const StridedPool<Pool, ALIGNED> &pool)
{
    return strided<ALIGNED>(elements(pool.stored_as), pool.strides);
}
template <class Pool, int ALIGNED> struct PlaceOfHead<StridedPool<Pool, ALIGNED>> {
    static __device__ __forceinline__ size_t of(int kv_head) { return kv_head; }
};

template <class Pool, int ALIGNED>
__device__ __forceinline__ size_t place_of_page(const StridedPool<Pool, ALIGNED> &, int page, int, int)
{
    return page;
}
template <class Pool, int ALIGNED>
__device__ __forceinline__ auto rows_of_place(const StridedPool<Pool, ALIGNED> &pool, size_t page, int kv_head, int row)
{
    return rows_of_head(elements(pool) + kv_head, (int)page, 0, row);
}
