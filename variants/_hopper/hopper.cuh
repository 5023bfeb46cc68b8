// What kernels of Hopper's own instructions have in common: tiles that arrive as boxes of a tensor (TMA), barriers that
// count arrivals and bytes (mbarrier), products of four warps on tiles in shared memory (wgmma). sm_90a alone. mma.cuh
// is put before this text, the products of the tile's sizes behind it (_hopper/products.py).
//
// Compile-time parameters: HEAD_DIM (elements per row), D (the same padded to a multiple of 32: a row of a tile).
//
// A tile of R rows is D / COLUMNS boxes, one behind the other, of R rows of COLUMNS elements each. Within 8 rows of a
// box pieces of 16 bytes are exchanged, as the copies leave them and the products expect them.

typedef unsigned long long u64;

// A CUtensorMap.
struct __align__(64) TensorMap {
    u64 words[16];
};

constexpr int COLUMNS = D % 64 == 0 ? 64 : 32;
constexpr int ROW_BYTES = COLUMNS * (int)sizeof(stored);  // of a box; also its swizzle
constexpr int BOXES = D / COLUMNS;
constexpr int DEPTHS = (HEAD_DIM + 15) / 16;  // products that sum over a row: padding behind these is not multiplied
constexpr int WARPGROUP = 128;                // threads

// x, which all lanes of a warp have: the compiler may keep what follows from it in uniform registers, where products have their
// descriptors.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffff, x, 0); }

// What shared_address() came from.
__device__ __forceinline__ unsigned char *shared_pointer(unsigned address)
{
    return static_cast<unsigned char *>(__cvta_shared_to_generic(address));
}

// --- Barriers (PTX ISA: mbarrier) ------------------------------------------------------------------------------------

__device__ __forceinline__ void init_barrier(u64 &barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

// Of one thread, once it has initialised all: other threads, and copies, may use them behind the next __syncthreads().
__device__ __forceinline__ void publish_barriers()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void arrive(u64 &barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// Arrive, and let the phase last until so many bytes have been copied, too.
__device__ __forceinline__ void arrive_and_expect(u64 &barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
                 : "memory");
}

// Until the phase of this parity is over: phases have parity 0, 1, 0, ..., and the one before the first has 1.
__device__ __forceinline__ void wait(u64 &barrier, int parity)
{
    asm volatile("{\n"
                 ".reg .pred over;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@over bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}\n" ::"r"(shared_address(&barrier)), "r"(parity)
                 : "memory");
}

// --- Named barriers (PTX ISA: bar) -----------------------------------------------------------------------------------

__device__ __forceinline__ void sync_threads(int barrier, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Counts this thread in, and does not wait.
__device__ __forceinline__ void arrive_threads(int barrier, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Whether it is true of any of these threads.
__device__ __forceinline__ bool any_of_threads(int barrier, int threads, bool is_true)
{
    int any;
    asm volatile("{\n"
                 ".reg .pred mine, some;\n"
                 "setp.ne.b32 mine, %1, 0;\n"
                 "bar.red.or.pred some, %2, %3, mine;\n"
                 "selp.b32 %0, 1, 0, some;\n"
                 "}\n"
                 : "=r"(any)
                 : "r"((int)is_true), "r"(barrier), "r"(threads)
                 : "memory");
    return any;
}

// --- Copies of boxes (PTX ISA: cp.async.bulk.tensor) -----------------------------------------------------------------

// A head of a tensor map that has an axis for sequences besides that for heads.
struct HeadOfSequence {
    int head, sequence;
};

// A box of a tensor -> shared memory. What lies outside of the tensor arrives as zeros, and counts as bytes.
__device__ __forceinline__ void load_box(unsigned to, const TensorMap &map, int column, int row, int head, u64 &barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(head), "r"(shared_address(&barrier))
                 : "memory");
}
__device__ __forceinline__ void load_box(unsigned to, const TensorMap &map, int column, int row, HeadOfSequence head,
                                         u64 &barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(head.head), "r"(head.sequence), "r"(shared_address(&barrier))
                 : "memory");
}

// ROWS rows of a head, from `row` on -> a tile. The map is `rows_map` of _hopper/__init__.py; `head` is a head's number among
// those of all sequences or, with a layout, a HeadOfSequence.
template <int ROWS, class Head>
__device__ __forceinline__ void load_tile(unsigned tile, const TensorMap &map, int row, Head head, u64 &barrier)
{
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
        load_box(tile + box * ROWS * ROW_BYTES, map, box * COLUMNS, row, head, barrier);
    }
}

// The first rows of a tile of ROWS rows -> as many rows of a head as a box of the map has; what lies outside is left out.
template <int ROWS>
__device__ __forceinline__ void store_tile(unsigned tile, const TensorMap &map, int row, int head)
{
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
                     "r"(box * COLUMNS), "r"(row), "r"(head), "r"(tile + box * ROWS * ROW_BYTES)
                     : "memory");
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// A box of a map of packs, from `row` of each of a pack's heads on -> shared memory, and back.
__device__ __forceinline__ void load_packed_box(unsigned to, const TensorMap &map, int column, int row, int pack, u64 &barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, 0, %4}], [%5];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(pack), "r"(shared_address(&barrier))
                 : "memory");
}
__device__ __forceinline__ void load_packed_box(unsigned to, const TensorMap &map, int column, int row, HeadOfSequence pack,
                                                u64 &barrier)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, 0, %4, %5}], [%6];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(pack.head), "r"(pack.sequence), "r"(shared_address(&barrier))
                 : "memory");
}
__device__ __forceinline__ void store_packed_box(unsigned from, const TensorMap &map, int column, int row, int pack)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, 0, %3}], [%4];" ::"l"(&map),
                 "r"(column), "r"(row), "r"(pack), "r"(from)
                 : "memory");
}
__device__ __forceinline__ void store_packed_box(unsigned from, const TensorMap &map, int column, int row, HeadOfSequence pack)
{
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%1, %2, 0, %3, %4}], [%5];" ::"l"(&map),
                 "r"(column), "r"(row), "r"(pack.head), "r"(pack.sequence), "r"(from)
                 : "memory");
}

// A warpgroup's 64 rows of a tile of ROWS rows come from the heads of a pack, from `row` of each on. The map is `packed_map`.
template <int ROWS, class Pack>
__device__ __forceinline__ void load_rows(unsigned rows, const TensorMap &map, int row, Pack pack, u64 &barrier)
{
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
        load_packed_box(rows + box * ROWS * ROW_BYTES, map, box * COLUMNS, row, pack, barrier);
    }
}

// And go back there; what lies outside of the tensor is left out.
template <int ROWS, class Pack>
__device__ __forceinline__ void store_rows(unsigned rows, const TensorMap &map, int row, Pack pack)
{
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
        store_packed_box(rows + box * ROWS * ROW_BYTES, map, box * COLUMNS, row, pack);
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// A run of bytes, a multiple of 16 (PTX ISA: cp.async.bulk): memory -> shared memory.
__device__ __forceinline__ void load_run(unsigned to, const float *from, int bytes, u64 &barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(shared_address(&barrier))
                 : "memory");
}

// Floats are added to those in memory (PTX ISA: cp.reduce.async.bulk).
__device__ __forceinline__ void add_run(float *to, unsigned from, int bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Until what this thread stored has been read from shared memory.
__device__ __forceinline__ void wait_until_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// What this thread wrote to shared memory is there for copies and products that a barrier orders behind it.
__device__ __forceinline__ void publish_to_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Where in a box piece `piece` of 16 bytes of a row lies.
__device__ __forceinline__ int piece_of_row(int row, int piece)
{
    return row * ROW_BYTES + (piece ^ (COLUMNS == 64 ? row % 8 : row / 2 % 4)) * CHUNK_BYTES;
}

// A fragment of A -> 16 rows of two pieces each (PTX ISA: stmatrix). Lane t gives the address of piece t / 16 of row t % 16.
__device__ __forceinline__ void store_matrices(unsigned address, const unsigned *x)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
}

// And back (PTX ISA: ldmatrix).
__device__ __forceinline__ void load_matrices(unsigned *x, unsigned address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

// --- Products (PTX ISA: wgmma) ---------------------------------------------------------------------------------------

constexpr u64 SWIZZLE = (u64)(COLUMNS == 64 ? 1 : 2) << 62;
constexpr u64 EIGHT_ROWS = (u64)(8 * ROW_BYTES / 16) << 32;  // from 8 rows to the next 8

// A descriptor counts in 16 bytes.
__device__ __forceinline__ u64 first_place(unsigned address) { return (address & 0x3ffff) >> 4; }

// Of a tile whose rows are summed over: A, and B as columns of rows.
__device__ __forceinline__ u64 along_rows(unsigned address) { return first_place(address) | EIGHT_ROWS | SWIZZLE; }

// Of a tile of ROWS rows that is summed over its rows.
template <int ROWS>
__device__ __forceinline__ u64 across_rows(unsigned address)
{
    return first_place(address) | (u64)(ROWS * ROW_BYTES / 16) << 16 | EIGHT_ROWS | SWIZZLE;
}

// From a descriptor `along_rows` of a tile of ROWS rows to the next 16 elements of each row, `step` times.
template <int ROWS>
__device__ __forceinline__ constexpr u64 steps_along(int step)
{
    constexpr int STEPS = COLUMNS / 16;
    return step / STEPS * (ROWS * ROW_BYTES / 16) + step % STEPS * 2;
}

// From a descriptor `across_rows` to the next 16 rows, `step` times.
__device__ __forceinline__ constexpr u64 steps_across(int step) { return step * ROW_BYTES; }

// Registers written so far are there for the products that follow.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most PENDING groups, the youngest, are under way; `sums` are those of a group that is not.
template <int PENDING, int N>
__device__ __forceinline__ void wait_for_products(float (&sums)[N])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    // The compiler must not read them any earlier.
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
