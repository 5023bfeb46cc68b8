// Which tiles of rows a block that owns keys visits. shares.cuh is put before this text.

// One turn of a block's loop: it scores a tile of rows of one of the query heads that share the block's keys. What one turn
// scores is summed LAG turns later.
struct Turn {
    int number, head, first_row;
    __device__ __forceinline__ int stage() const { return number % STAGES; }
};

// All tiles of rows with one that sees a key of the block, of all heads that share the keys. The numbers are in shared memory,
// read anew each time: sums want the registers.
struct Turns {
    const volatile int *numbers;
    __device__ __forceinline__ int count() const { return numbers[0]; }  // with those in which it only sums
    __device__ __forceinline__ int first_row() const { return numbers[1]; }
    __device__ __forceinline__ int end_row() const { return numbers[2]; }

    // By one thread. Rows first to end - 1 see the block's keys.
    static __device__ __forceinline__ void note(int *numbers, int first, int end, int heads)
    {
        const int tile = first / BR, tiles = first < end ? (end + BR - 1) / BR - tile : 0;
        numbers[0] = tiles > 0 ? heads * tiles + LAG : 0;
        numbers[1] = tile * BR;
        numbers[2] = (tile + tiles) * BR;
    }

    __device__ __forceinline__ Turn first() const { return {0, 0, first_row()}; }
    __device__ __forceinline__ bool scores(const Turn &turn) const { return turn.number < count() - LAG; }
    __device__ __forceinline__ Turn after(const Turn &turn) const
    {
        const bool is_last = turn.first_row + BR == end_row();
        return {turn.number + 1, turn.head + is_last, is_last ? first_row() : turn.first_row + BR};
    }
    __device__ __forceinline__ Turn before(const Turn &turn) const
    {
        const bool is_first = turn.first_row == first_row();
        return {turn.number - 1, turn.head - is_first, (is_first ? end_row() : turn.first_row) - BR};
    }
};
