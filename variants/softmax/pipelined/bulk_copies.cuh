// Copies of whole runs of memory, and barriers that count their bytes (PTX ISA: cp.async.bulk, mbarrier). Hopper. In Numba, these
// are functions of _hopper/numba_hopper.py.

typedef unsigned long long Barrier;

__device__ __forceinline__ unsigned shared_address(const void *pointer)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// One arrival ends a phase, once its bytes are there.
__device__ __forceinline__ void init_barrier(Barrier &barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)) : "memory");
}

// Of one thread, once it has initialised all: copies may use them.
__device__ __forceinline__ void publish_barriers()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A run of bytes, a multiple of 16: memory -> shared memory. The barrier's phase ends when all are there.
__device__ __forceinline__ void load_run(void *to, const void *from, int bytes, Barrier &barrier)
{
    const unsigned count = shared_address(&barrier);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(count), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(count)
                 : "memory");
}

// Until the phase of this parity is over: phases have parity 0, 1, 0, ...
__device__ __forceinline__ void wait(Barrier &barrier, int parity)
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
