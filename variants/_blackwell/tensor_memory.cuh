// Tensor memory: 128 lanes of 512 columns of 32 bits (PTX ISA: tcgen05.alloc, .dealloc, .ld, .st, .wait, .fence). sm_100a
// alone. _hopper/hopper.cuh is put before this text.
//
// An address has a lane in its upper 16 bits and a column in its lower ones. Each warp of a warpgroup reads and writes 32 lanes:
// warp w those from 32 w on, its thread t lane 32 w + t. So each thread of a warpgroup has a row of a tile of 128 rows.

constexpr int LANES = 128;

// By all threads of one warp: so many columns, a power of two; their address is stored at `address`. No block on this
// multiprocessor allocates more.
template <int COUNT> __device__ __forceinline__ void allocate_columns(unsigned &address)
{
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(shared_address(&address)), "n"(COUNT)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}

// By all threads of one warp, once nothing reads or writes them any more.
template <int COUNT> __device__ __forceinline__ void free_columns(unsigned address)
{
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "n"(COUNT) : "memory");
}

// The lanes of the calling warp, as part of an address.
__device__ __forceinline__ unsigned lanes_of_warp() { return threadIdx.x % WARPGROUP / 32 * 32 << 16; }

// What this thread has done with tensor memory comes before its next arrival at a barrier; and after its last wait.
__device__ __forceinline__ void before_arrival() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
__device__ __forceinline__ void after_wait() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

// 32 columns of the thread's lane, under way until wait_for_loads().
__device__ __forceinline__ void load_columns(float *x, unsigned address)
{
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]), "=f"(x[4]), "=f"(x[5]), "=f"(x[6]), "=f"(x[7]),
                   "=f"(x[8]), "=f"(x[9]), "=f"(x[10]), "=f"(x[11]), "=f"(x[12]), "=f"(x[13]), "=f"(x[14]), "=f"(x[15]),
                   "=f"(x[16]), "=f"(x[17]), "=f"(x[18]), "=f"(x[19]), "=f"(x[20]), "=f"(x[21]), "=f"(x[22]), "=f"(x[23]),
                   "=f"(x[24]), "=f"(x[25]), "=f"(x[26]), "=f"(x[27]), "=f"(x[28]), "=f"(x[29]), "=f"(x[30]), "=f"(x[31])
                 : "r"(address)
                 : "memory");
}

template <int N> __device__ __forceinline__ void wait_for_loads(float (&x)[N])
{
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    // The compiler must not use them any earlier.
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

// 32 columns of the thread's lane, under way until wait_for_stores().
__device__ __forceinline__ void store_columns(unsigned address, const unsigned *x)
{
    asm volatile("tcgen05.st.sync.aligned.32x32b.x32.b32 [%32], "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31};" ::"r"(x[0]),
                 "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]), "r"(x[6]), "r"(x[7]), "r"(x[8]), "r"(x[9]), "r"(x[10]),
                 "r"(x[11]), "r"(x[12]), "r"(x[13]), "r"(x[14]), "r"(x[15]), "r"(x[16]), "r"(x[17]), "r"(x[18]), "r"(x[19]),
                 "r"(x[20]), "r"(x[21]), "r"(x[22]), "r"(x[23]), "r"(x[24]), "r"(x[25]), "r"(x[26]), "r"(x[27]), "r"(x[28]),
                 "r"(x[29]), "r"(x[30]), "r"(x[31]), "r"(address)
                 : "memory");
}

__device__ __forceinline__ void wait_for_stores() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }
