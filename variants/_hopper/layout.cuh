// Layouts: where tensor maps have a head. The plan chooses one of the types below as `Layout`, together with the maps.
// hopper.cuh is put before this text.

// Tensors are (batch, heads, rows, D), C-contiguous: one axis of a map has the heads of all sequences.
struct DenseLayout {
    // Of head `number` among those of all sequences, which have so many heads each.
    static __device__ __forceinline__ int place(int number, int) { return number; }
};

// Rows have any strides: sequences are an axis of their own.
struct StridedLayout {
    static __device__ __forceinline__ HeadOfSequence place(int number, int heads) { return {number % heads, number / heads}; }
};
