// Which tiles of rows a block that owns keys visits, and which pairs of a tile a mask hides besides Limits. The type TileOrder of
// _features/tile_order.cuh chooses one of the two types of turns below. shares.cuh, seen.cuh and anew.cuh are put before
// this text.

// One turn of a block's loop: it scores a tile of rows of one of the query heads that share the block's keys. What one turn
// scores is summed LAG turns later.
struct Turn {
    int number, head, first_row;
    __device__ __forceinline__ int stage() const { return number % STAGES; }
};

// All tiles of rows with one that sees a key of the block, of all heads that share the keys. The numbers are in shared memory,
// read anew each time: sums want the registers.
struct RunOfTurns {
    typedef int Numbers[3];
    const volatile int *numbers;
    __device__ __forceinline__ RunOfTurns(const int *numbers, const AllTiles &) : numbers(numbers) {}
    __device__ __forceinline__ int count() const { return numbers[0]; }  // with those in which it only sums
    __device__ __forceinline__ int first_row() const { return numbers[1]; }
    __device__ __forceinline__ int end_row() const { return numbers[2]; }

    // By one thread. Rows first to end - 1 see the block's keys.
    static __device__ __forceinline__ void note(int *numbers, int first, int end, int /*q_len*/, int heads)
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

    // Limits alone hide pairs.
    __device__ __forceinline__ AllTiles::Pairs pairs(const Turn &) const { return {}; }
    __device__ __forceinline__ void compute(const AllTiles::Pairs &, const Turn &, int, int, int) const {}
    __device__ __forceinline__ void copy_entry(const Turn &, int) const {}
};

// Those of a list that is ahead of the launch, of one head after the other. The numbers are that of turns, that of the list's
// entries, and the entries of the turn before, of this turn and of the two after it. One thread reads each entry once, by an
// asynchronous copy beside those of rows. Of a mixed tile the block computes which row sees which key, a bit each.
template <class Order> struct ListedTurns {
    static constexpr int ENTRIES = 4;
    typedef int Numbers[2 + ENTRIES];
    const volatile int *numbers;
    const Order &order;
    __device__ __forceinline__ ListedTurns(const int *numbers, const Order &order) : numbers(numbers), order(order) {}
    __device__ __forceinline__ int count() const { return numbers[0]; }  // with those in which it only sums
    __device__ __forceinline__ int tiles() const { return numbers[1]; }
    __device__ __forceinline__ int entry(int number) const { return numbers[2 + number % ENTRIES]; }

    // The list of the block's keys.
    __device__ __forceinline__ const int *list(int q_len) const
    {
        const size_t number = (size_t)blockIdx.z * order.lists_per_sequence * gridDim.y + blockIdx.y;
        return order.visits + number * (1 + (q_len + BR - 1) / BR);
    }

    // By one thread.
    __device__ __forceinline__ void note(int *numbers, int, int, int q_len, int heads) const
    {
        const int *const entries = list(q_len);
        const int tiles = __ldg(entries), turns = heads * tiles;
        numbers[0] = tiles > 0 ? turns + LAG : 0;
        numbers[1] = tiles;
        for (int n = 0; n < ENTRIES; ++n) numbers[2 + n] = n < min(turns, 2) ? __ldg(entries + 1 + n % tiles) : 0;
    }

    __device__ __forceinline__ Turn at(int number) const
    {
        return {number, (int)((unsigned)number / (unsigned)tiles()), entry(number) / 2 * BR};
    }
    __device__ __forceinline__ Turn first() const { return {0, 0, entry(0) / 2 * BR}; }
    __device__ __forceinline__ bool scores(const Turn &turn) const { return turn.number < count() - LAG; }
    __device__ __forceinline__ Turn after(const Turn &turn) const { return at(turn.number + 1); }
    __device__ __forceinline__ Turn before(const Turn &turn) const { return at(turn.number - 1); }

    // The entry that `after` needs in the next turn.
    __device__ __forceinline__ void copy_entry(const Turn &turn, int q_len) const
    {
        const int number = turn.number + 2;
        if (thread_anew() == 0 && number < count() - LAG) {
            const int *const from = list(anew(q_len)) + 1 + (unsigned)number % (unsigned)tiles();
            copy_async<4>(shared_address(const_cast<const int *>(numbers + 2 + number % ENTRIES)), from);
        }
    }

    // Which of the block's keys the turn's rows see, in bits that `compute` writes. Whether it hides some is read anew, too.
    struct Pairs {
        const volatile int *entry;
        __device__ __forceinline__ bool hides_some() const { return *entry % 2 != 0; }
        static __device__ __forceinline__ typename Order::Bits &bits()
        {
            __shared__ typename Order::Bits bits;
            return bits;
        }
    };
    __device__ __forceinline__ Pairs pairs(const Turn &turn) const { return {numbers + 2 + turn.number % ENTRIES}; }

    // By all threads. The block's keys begin with `first_key`.
    __device__ __forceinline__ void compute(const Pairs &pairs, const Turn &turn, int first_key, int q_len, int kv_len) const
    {
        if (!pairs.hides_some() || !scores(turn)) return;
        const RowBlock rows = {0, 0, 0, 0, turn.first_row, min(BR, q_len - turn.first_row)};
        const typename Order::OfBlock seen = {nullptr, 0, order.rule.of_head(0, q_len, anew(kv_len)), rows};
        const typename Order::Tile own_keys = {1, 0, first_key};
        seen.template compute_bits<BR / WARPS>(pairs.bits(), own_keys, min(BC, kv_len - first_key), thread_anew());
        __syncthreads();
    }
};

template <class Order> struct TurnsIn {
    typedef ListedTurns<Order> Turns;
};
template <> struct TurnsIn<AllTiles> {
    typedef RunOfTurns Turns;
};
typedef TurnsIn<TileOrder>::Turns Turns;

// Whether each row sees each key, where a mask may hide pairs besides limits.
__device__ __forceinline__ bool all_see(const RowsOfKey &seeing, const Pairs &of, const AllTiles::Pairs &)
{
    return all_see(seeing, of);
}
template <class HiddenPairs>
__device__ __forceinline__ bool all_see(const RowsOfKey &seeing, const Pairs &of, const HiddenPairs &hidden)
{
    return !hidden.hides_some() && all_see(seeing, of);
}
