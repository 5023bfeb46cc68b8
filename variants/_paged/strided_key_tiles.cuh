// Tiles of K and V whose rows are not one run in global memory, in the slots of split_attention.cuh: they lie there as those of
// KeyTiles do, and are copied in pieces as long as rows are aligned to. strided_pools.cuh is put before this text. The Numba twin is
// numba_strided_pools.py.

template <class Element, int ALIGNED> struct StridedKeyTiles : KeyTiles<Element> {
    using KeyTiles<Element>::KeyTiles;
    enum : int {
        SIZE = sizeof(Element),
        LONGEST = D * SIZE % 16 == 0 ? 16 : D * SIZE % 8 == 0 ? 8 : D * SIZE % 4 == 0 ? 4 : SIZE,
        BYTES = ALIGNED * SIZE < LONGEST ? ALIGNED * SIZE : LONGEST,  // of a piece
        PIECES = D * SIZE / BYTES,                                    // of a row
        PITCH = (D * SIZE + 127) / 128 * 128
    };

    __device__ __forceinline__ static void copy(int to, const StridedRows<const Element, ALIGNED, D> &source, int first, int end,
                                                int lane, bool)
    {
#pragma unroll 2
        for (int start = 0; start < BC * PIECES; start += 32) {
            const int piece = start + lane, row = piece / PIECES, byte = piece % PIECES * BYTES;
            if (BC * PIECES % 32 != 0 && piece >= BC * PIECES) break;
            const int at = to + swizzled<PITCH>(row, byte / CHUNK_BYTES) + byte % CHUNK_BYTES;
            const bool wanted = row >= first && row < end;
            const Element *const from = source.first + row * source.stride + byte / SIZE;
            if constexpr (BYTES >= 4) {
                copy_async<BYTES>(shared_address(shared) + at, from, wanted);
            } else if constexpr (BYTES == 2) {
                *reinterpret_cast<unsigned short *>(shared + at) = wanted ? *reinterpret_cast<const unsigned short *>(from) : 0;
            } else {
                shared[at] = wanted ? *reinterpret_cast<const unsigned char *>(from) : 0;
            }
        }
    }
};

template <class Element, int ALIGNED, int WIDTH>
StridedKeyTiles<Element, ALIGNED> tiles_of(const StridedRows<const Element, ALIGNED, WIDTH> &);
