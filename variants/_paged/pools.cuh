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
