// Gradients on tensor cores multiply whole tiles: a dS of 0, where a row does not see a key, must not meet NaN or
// infinity. mma.cuh and tiles.cuh are put before this text.

// Row `row` of a tile: what is NaN or infinity becomes 0. Whether there was any.
__device__ __forceinline__ bool clear_not_finite(unsigned char *tile, int row)
{
    bool found = false;
#pragma unroll 1
    for (int e = 0; e < D; ++e) {
        unsigned char *const at = tile + swizzled<ROW_BYTES>(row, e / CHUNK) + e % CHUNK * (int)sizeof(stored);
        unsigned short &element = *reinterpret_cast<unsigned short *>(at);
        if (!not_finite(element)) continue;
        element = 0;
        found = true;
    }
    return found;
}

// The same with a key of K_j. In the place of what was there V_j has a NaN: dP = dO_i V_j^T brings it to the rows that
// see the key, and a mask keeps it from all others.
__device__ __forceinline__ void move_not_finite(unsigned char *K_tile, unsigned char *V_tile, int key)
{
    if (!clear_not_finite(K_tile, key)) return;
    *reinterpret_cast<unsigned short *>(V_tile + swizzled<ROW_BYTES>(key, 0)) = 0x7fff;  // in either dtype
}
