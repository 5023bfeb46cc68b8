// The kernels of copy_probes.py. STRIDE, put before this text: bytes of K from a copy's source to its next repetition's.

// A warp copies a piece of BYTES per lane. kind 0: `columns` pieces make a row; rows are `source_row` bytes apart in K and
// `target_row` on chip. kind 1: the same, with pieces of 16 bytes exchanged within each line on chip. kind 2: from and to
// anywhere in 64 pieces, by the multipliers `columns` and `source_row`. Lanes of `shortened` read `wanted` bytes.
template <int BYTES, bool PAST_L1>
__device__ void copy(const char *K, int kind, int columns, int source_row, int target_row, int source_start,
                     int target_start, unsigned active, unsigned shortened, int wanted, int repeats)
{
    extern __shared__ __align__(1024) char tile[];
    const int lane = threadIdx.x;
    int source, target;
    if (kind == 2) {
        source = lane * columns % 64 * BYTES;
        target = lane * source_row % 64 * BYTES;
    } else {
        const int row = lane / columns, column = lane % columns * BYTES;
        source = row * source_row + column;
        target = row * target_row + column;
        if (kind == 1) target ^= target / 128 % 8 * 16;
    }
    const unsigned to = (unsigned)__cvta_generic_to_shared(tile) + target_start + target;
    const char *from = K + source_start + source;
    const int bytes = shortened >> lane & 1 ? wanted : BYTES;
    if ((active >> lane & 1) == 0) return;
    for (int i = 0; i < repeats; ++i, from += STRIDE) {
        if (PAST_L1) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
        } else {
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(bytes)
                         : "memory");
        }
        // An H100 leaves out a copy past L1 to where another one is still under way.
        asm volatile("cp.async.wait_all;" ::: "memory");
    }
}

#define ARGUMENTS                                                                                                       \
    const char *K, int kind, int columns, int source_row, int target_row, int source_start, int target_start,           \
        unsigned active, unsigned shortened, int wanted, int repeats
#define COPY(NAME, BYTES, PAST_L1)                                                                                      \
    extern "C" __global__ void NAME(ARGUMENTS)                                                                          \
    {                                                                                                                   \
        copy<BYTES, PAST_L1>(K, kind, columns, source_row, target_row, source_start, target_start, active, shortened,   \
                             wanted, repeats);                                                                          \
    }
COPY(copy_4, 4, false)
COPY(copy_8, 8, false)
COPY(copy_16, 16, false)
COPY(copy_16_past_l1, 16, true)

// --- Bulk copies, by one thread --------------------------------------------------------------------------------------

struct alignas(64) Map {
    char bytes[128];
};

__device__ unsigned shared_address(const void *pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

__device__ void expect(unsigned barrier, unsigned bytes)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier));
    asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes));
}

__device__ void wait(unsigned barrier)
{
    unsigned done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier)
                     : "memory");
    }
}

__device__ void wait_for_stores()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

extern "C" __global__ void copy_run(const char *K, int source, int target, int bytes, int repeats)
{
    extern __shared__ __align__(1024) char tile[];
    __shared__ unsigned long long barrier;
    if (threadIdx.x) return;
    expect(shared_address(&barrier), bytes * repeats);
    for (int i = 0; i < repeats; ++i) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(tile + target)),
                     "l"(K + source + i * STRIDE), "r"(bytes), "r"(shared_address(&barrier))
                     : "memory");
    }
    wait(shared_address(&barrier));
}

extern "C" __global__ void store_run(char *K, int target, int source, int bytes, int repeats)
{
    extern __shared__ __align__(1024) char tile[];
    if (threadIdx.x) return;
    for (int i = 0; i < repeats; ++i) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(K + target + i * STRIDE),
                     "r"(shared_address(tile + source)), "r"(bytes)
                     : "memory");
    }
    wait_for_stores();
}

// Boxes of `rows` rows from row `row` and column `column` on, one below the other.
extern "C" __global__ void copy_boxes(const __grid_constant__ Map map, int column, int row, int rows, int bytes, int repeats)
{
    extern __shared__ __align__(1024) char tile[];
    __shared__ unsigned long long barrier;
    if (threadIdx.x) return;
    expect(shared_address(&barrier), bytes * repeats);
    for (int i = 0; i < repeats; ++i) {
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(tile)),
                     "l"(&map), "r"(column), "r"(row + i * rows), "r"(shared_address(&barrier))
                     : "memory");
    }
    wait(shared_address(&barrier));
}

extern "C" __global__ void store_boxes(const __grid_constant__ Map map, int column, int row, int rows, int bytes, int repeats)
{
    extern __shared__ __align__(1024) char tile[];
    if (threadIdx.x) return;
    for (int i = 0; i < repeats; ++i) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(column),
                     "r"(row + i * rows), "r"(shared_address(tile))
                     : "memory");
    }
    wait_for_stores();
}
