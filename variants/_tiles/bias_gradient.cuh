// What becomes of dS where scores have a bias, whose gradient is dS summed over the batch and the axes that the bias does not
// vary over. tiles.cuh is put before this text, for kernels in which a block owns keys: row_of counts keys, and key_of rows.
// The plan chooses one of the types below as `DBias`. The Numba twin is numba_bias_gradient.py.

// No bias.
struct NoBias {
    static constexpr bool IS_BIASED = false;
    __device__ __forceinline__ NoBias of_head(int) const { return *this; }
    __device__ __forceinline__ void add(const float (&)[TM][TN], int, int, int, int) const {}
    __device__ __forceinline__ void zero() const {}
};

// There is a bias, and another kernel computes its gradient.
struct BiasElsewhere : NoBias {
    static constexpr bool IS_BIASED = true;
    __device__ __forceinline__ BiasElsewhere of_head(int) const { return *this; }
};

// Blocks add to dbias in memory by atomics, in no fixed order. An axis that the bias does not vary over has stride 0.
struct AddedBias {
    static constexpr bool IS_BIASED = true;
    float *dbias;
    int head_stride, row_stride, key_stride;
    long long elements;

    struct OfHead {
        static constexpr bool IS_BIASED = true;
        float *dbias;
        int row_stride, key_stride;

        // dbias += dS of a tile, after it has been summed over the tile's rows or keys if the bias does not vary over these.
        // dS is 0 where the tile has no such row or key.
        __device__ __forceinline__ void add(const float (&dS)[TM][TN], int first_key, int keys, int first_row, int rows) const
        {
            if (row_stride != 0 && key_stride != 0) {
#pragma unroll
                for (int i = 0; i < TM; ++i)
#pragma unroll
                    for (int j = 0; j < TN; ++j) {
                        const int row = first_row + key_of(j), key = first_key + row_of(i);
                        if (row_of(i) < keys && key_of(j) < rows) atomicAdd(at(row, key), dS[i][j]);
                    }
            } else if (row_stride != 0) {
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    float sum = 0.0f;
#pragma unroll
                    for (int i = 0; i < TM; ++i) sum += dS[i][j];
                    sum = lanes_sum<APART>(sum);
                    if (thread_row() % APART == 0 && key_of(j) < rows) atomicAdd(at(first_row + key_of(j), 0), sum);
                }
            } else if (key_stride != 0) {
#pragma unroll
                for (int i = 0; i < TM; ++i) {
                    const float sum = row_sum(sum_of_row(dS[i]));
                    if (thread_column() == 0 && row_of(i) < keys) atomicAdd(at(0, first_key + row_of(i)), sum);
                }
            } else {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < TM; ++i) sum += sum_of_row(dS[i]);
                sum = lanes_sum<32>(sum);
                if (thread_index() % 32 == 0) atomicAdd(dbias, sum);
            }
        }

    private:
        __device__ __forceinline__ float *at(int row, int key) const
        {
            return dbias + ((size_t)row * row_stride + (size_t)key * key_stride);
        }
        static __device__ __forceinline__ float sum_of_row(const float (&dS)[TN])
        {
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < TN; ++j) sum += dS[j];
            return sum;
        }
    };

    __device__ __forceinline__ OfHead of_head(int head) const
    {
        return {dbias + (size_t)head * head_stride, row_stride, key_stride};
    }

    // dbias = 0, by all blocks of a launch before.
    __device__ __forceinline__ void zero() const
    {
        const long long block = ((long long)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        const long long blocks = (long long)gridDim.x * gridDim.y * gridDim.z;
        for (long long start = block * THREADS; start < elements; start += blocks * THREADS) {
            if (start + thread_index() < elements) dbias[start + thread_index()] = 0.0f;
        }
    }
};
