// Layouts: where the rows of Q, K, V and O lie. The plan chooses one of the types below as `Layout`, and a kernel has a
// parameter of that type. Elements of a row are adjacent in every layout.
//
//     const auto K_head = layout.K_rows(K, number, batch, head, row);   // the rows of a head from `row` on
//     rows_from<D>(K_head, first_key)                                   // of these, the ones from first_key on
//
// The result is a pointer if rows lie one after the other, and else StridedRows; functions that move tiles take either. Numba
// passes arrays that know their strides, so that its kernels need no such type. `number` is that of the row among the rows of
// all heads and sequences. Rows of Q and K have D elements, rows of V and O have DV. ANEW: where a head's rows begin is
// computed here, and takes no register before. Kernels of gradients have another parameter of one of these types,
// GradientLayout, of dQ, dK, dV and dO.

// Tensors are (batch, heads, rows, D or DV), C-contiguous.
struct DenseLayout {
    static constexpr int ALIGNED = 8;  // as far as threads need it: a thread moves 16 bytes, or as many as D and DV keep aligned
    template <typename T> __device__ __forceinline__ T *Q_rows(T *Q, size_t number, unsigned, unsigned, int) const
    {
        return Q + number * D;
    }
    template <bool ANEW = false, typename T>
    __device__ __forceinline__ T *K_rows(T *K, size_t number, unsigned, unsigned, int) const
    {
        return K + number * D;
    }
    template <bool ANEW = false, typename T>
    __device__ __forceinline__ T *V_rows(T *V, size_t number, unsigned, unsigned, int) const
    {
        return V + number * DV;
    }
    template <typename T> __device__ __forceinline__ T *O_rows(T *O, size_t number, unsigned, unsigned, int) const
    {
        return O + number * DV;
    }
};

template <int WIDTH, typename T> __device__ __forceinline__ T *rows_from(T *rows, int number)
{
    return rows + (size_t)number * WIDTH;
}

// Rows of WIDTH elements that begin `stride` elements apart, each at a multiple of ALIGNED elements.
template <typename T, int ALIGNED, int WIDTH> struct StridedRows {
    T *first;
    long long stride;
    // Element e of a run of rows.
    __device__ __forceinline__ T *at(unsigned e) const { return first + e / WIDTH * stride + e % WIDTH; }
};

template <int WIDTH, typename T, int ALIGNED>
__device__ __forceinline__ StridedRows<T, ALIGNED, WIDTH> rows_from(const StridedRows<T, ALIGNED, WIDTH> &rows, int number)
{
    return {rows.first + number * rows.stride, rows.stride};
}

// From one sequence, head and row of a tensor to the next, in elements.
struct Strides {
    long long sequence, head, row;
};

// Any strides, of each tensor its own. All rows begin at a multiple of ELEMENTS elements.
template <int ELEMENTS> struct StridedLayout {
    static constexpr int ALIGNED = ELEMENTS;
    Strides Q, K, V, O;

    template <int WIDTH, typename T>
    static __device__ __forceinline__ StridedRows<T, ALIGNED, WIDTH> rows(T *tensor, const Strides &strides,
                                                                          unsigned sequence, unsigned head, int row)
    {
        return {tensor + sequence * strides.sequence + head * strides.head + row * strides.row, strides.row};
    }
    template <typename T>
    __device__ __forceinline__ auto Q_rows(T *tensor, size_t, unsigned sequence, unsigned head, int row) const
    {
        return rows<D>(tensor, Q, sequence, head, row);
    }
    template <bool ANEW = false, typename T>
    __device__ __forceinline__ auto K_rows(T *tensor, size_t, unsigned sequence, unsigned head, int row) const
    {
        if constexpr (ANEW) asm volatile("" : "+r"(sequence), "+r"(head));
        return rows<D>(tensor, K, sequence, head, row);
    }
    template <bool ANEW = false, typename T>
    __device__ __forceinline__ auto V_rows(T *tensor, size_t, unsigned sequence, unsigned head, int row) const
    {
        if constexpr (ANEW) asm volatile("" : "+r"(sequence), "+r"(head));
        return rows<DV>(tensor, V, sequence, head, row);
    }
    template <typename T>
    __device__ __forceinline__ auto O_rows(T *tensor, size_t, unsigned sequence, unsigned head, int row) const
    {
        return rows<DV>(tensor, O, sequence, head, row);
    }
};
