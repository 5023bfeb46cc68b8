// dQ where blocks sum it in memory, in float32, in fragments of C (mma.cuh): 16 rows and 8 columns are 128 floats, of
// which a warp adds all at once. Where a request has up to 16 bytes of a lane (sm_90), its four floats lie side by side;
// else c0 of all lanes, then c1, c2 and c3. tiles.cuh is put before this text.
//
// Compile-time parameter: D (elements per row).

constexpr int DQ_TILES = (D + 7) / 8;  // fragments side by side
constexpr int FRAGMENT = 128;
#if __CUDA_ARCH__ >= 900
constexpr int LANE_STRIDE = 4;
#else
constexpr int LANE_STRIDE = 1;
#endif

// dQ += C, of one fragment; `to` is the lane's first float.
__device__ __forceinline__ void add_fragment(float *to, const float (&c)[4])
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3])
                 : "memory");
#else
#pragma unroll
    for (int e = 0; e < 4; ++e) atomicAdd(to + 32 * e, c[e]);
#endif
}

// C, of one fragment of dQ; `from` is the lane's first float.
__device__ __forceinline__ void load_fragment(float (&c)[4], const float *from)
{
#if __CUDA_ARCH__ >= 900
    const float4 all = *reinterpret_cast<const float4 *>(from);
    c[0] = all.x, c[1] = all.y, c[2] = all.z, c[3] = all.w;
#else
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] = from[32 * e];
#endif
}
