// Slots between a role that fills them and one that reads them. hopper.cuh is put before this text.

// Slots in shared memory that one role fills and another reads, with two mbarriers each. Item n, counted from 0, is put into
// slot n % COUNT.
template <int COUNT> struct Slots {
    u64 are_full[COUNT], are_empty[COUNT];

    static __device__ __forceinline__ int slot(int n) { return n % COUNT; }
    static __device__ __forceinline__ int phase(int n) { return n / COUNT & 1; }
    __device__ __forceinline__ u64 &full(int n) { return are_full[slot(n)]; }

    // A slot is full once so many have filled it, and empty once so many readers have released it.
    __device__ __forceinline__ void init(int readers, int fillers = 1)
    {
        for (int slot = 0; slot < COUNT; ++slot) {
            init_barrier(are_full[slot], fillers);
            init_barrier(are_empty[slot], readers);
        }
    }

    // The role that fills: copies of so many bytes fill the slot.
    __device__ __forceinline__ void wait_until_empty(int n) { wait(are_empty[slot(n)], phase(n) ^ 1); }
    __device__ __forceinline__ void expect(int n, int bytes) { arrive_and_expect(full(n), bytes); }
    __device__ __forceinline__ void fill(int n) { arrive(full(n)); }

    // The role that reads.
    __device__ __forceinline__ void wait_until_full(int n) { wait(full(n), phase(n)); }
    __device__ __forceinline__ void release(int n) { arrive(are_empty[slot(n)]); }
};
