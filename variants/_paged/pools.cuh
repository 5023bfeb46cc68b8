// Pool: how K and V are stored, and so what a kernel's arguments K and V are. The plan chooses one of the types as `Pool`.

// As Q is. Functions for this type compile to nothing.
typedef const stored *__restrict__ SameAsQ;

__device__ __forceinline__ const stored *elements(const stored *pool) { return pool; }
__device__ __forceinline__ float times_scale(float x, const stored *, int) { return x; }
template <class Rows> __device__ __forceinline__ void scale_O(Rows &, const stored *, int) {}

// In 8 bits: a sign, 4 bits of exponent and 3 of fraction, times a number per key/value head. K's scale is part of tau, V's is
// multiplied with sums over keys.
struct e4m3 { unsigned char bits; };

struct ScaledE4m3 {
    const e4m3 *bytes;
    const float *scales;
};

__device__ __forceinline__ const e4m3 *elements(const ScaledE4m3 &pool) { return pool.bytes; }
__device__ __forceinline__ float times_scale(float x, const ScaledE4m3 &pool, int kv_head) { return x * __ldg(pool.scales + kv_head); }
template <class Rows> __device__ __forceinline__ void scale_O(Rows &rows, const ScaledE4m3 &V, int kv_head)
{
    const float scale = __ldg(V.scales + kv_head);
    for (auto &tile : rows.O)
        for (float &element : tile) element *= scale;
}

// Where a page lies among those of a key/value head, and the rows of the head from row `row` of the page on. Pools whose pages have
// strides are in strided_pools.cuh.
template <class Pool> __device__ __forceinline__ size_t place_of_page(const Pool &, int page, int kv_heads, int kv_head)
{
    return ((size_t)page * kv_heads + kv_head) * PAGE;
}
template <class Pool> __device__ __forceinline__ auto rows_of_place(const Pool &pool, size_t place, int, int row)
{
    return elements(pool) + (place + row) * D;
}

// The same with the head first: elements(pool) + PlaceOfHead<Pool>::of(kv_head) is the head in the pool's first page.
template <class Pool> struct PlaceOfHead {
    static __device__ __forceinline__ size_t of(int kv_head) { return (size_t)kv_head * PAGE * D; }
};
template <class Element> __device__ __forceinline__ const Element *chosen(bool of_V, const Element *V, const Element *K)
{
    return of_V ? V : K;
}
template <class Element> __device__ __forceinline__ const Element *rows_of_head(const Element *head, int page, int kv_heads, int row)
{
    return head + ((size_t)page * kv_heads * PAGE + row) * D;
}
