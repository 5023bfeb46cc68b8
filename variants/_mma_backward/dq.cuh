// dQ where blocks add to it in memory, in float32, in fragments of C (mma.cuh): 16 rows and 8 columns are 128 floats, of which
// a warp adds all at once. Where a request has up to 16 bytes of a lane (sm_90), its four floats lie side by side; else c0 of
// all lanes, then c1, c2 and c3. The plan chooses one of the types below as `DQ`.
//
// Compile-time parameter: D (elements per row).

constexpr int DQ_TILES = (D + 7) / 8;  // fragments side by side
constexpr int FRAGMENT = 128;
constexpr bool SIDE_BY_SIDE = __CUDA_ARCH__ >= 900;
constexpr int LANE_STRIDE = SIDE_BY_SIDE ? 4 : 1;

struct AddedInMemory {
    static constexpr bool IS_ADDED = true;
    float *dQ;
    // q_len: rows of the head.
    __device__ __forceinline__ float *of_head(size_t head, int q_len, int /*first_row*/) const
    {
        return dQ + head * ((q_len + 15) / 16) * DQ_TILES * FRAGMENT;
    }
};

// The same of several sequences. Each has fragments of its own: up to one more than its share of rows.
struct AddedBySequence {
    static constexpr bool IS_ADDED = true;
    float *dQ;
    // q_len: rows of the head, of all sequences, of which the block's begins at `first_row`.
    __device__ __forceinline__ float *of_head(size_t head, int q_len, int first_row) const
    {
        return dQ + (head * (q_len / 16 + gridDim.z) + (first_row / 16 + blockIdx.z)) * DQ_TILES * FRAGMENT;
    }
};

// Another kernel computes it.
struct ComputedElsewhere {
    static constexpr bool IS_ADDED = false;
    __device__ __forceinline__ float *of_head(size_t, int, int) const { return nullptr; }
};

// dQ += C, of one fragment; `to` is the lane's first float.
__device__ __forceinline__ void add_fragment(float *to, const float (&c)[4])
{
    if constexpr (SIDE_BY_SIDE) {
        asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3])
                     : "memory");
    } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) atomicAdd(to + 32 * e, c[e]);
    }
}

// C, of one fragment of dQ; `from` is the lane's first float.
__device__ __forceinline__ void load_fragment(float (&c)[4], const float *from)
{
    if constexpr (SIDE_BY_SIDE) {
        const float4 all = *reinterpret_cast<const float4 *>(from);
        c[0] = all.x, c[1] = all.y, c[2] = all.z, c[3] = all.w;
    } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) c[e] = from[32 * e];
    }
}
