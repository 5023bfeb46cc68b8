// Barriers between roles that hand over one thing at a time. _hopper/hopper.cuh is put before this text.

// Something that happens again and again. Its n-th time, counted from 0, is over when all arrivals of it are there.
struct Event {
    u64 barrier;

    __device__ __forceinline__ void init(int arrivals) { init_barrier(barrier, arrivals); }
    __device__ __forceinline__ void arrive() { ::arrive(barrier); }
    __device__ __forceinline__ void wait_for(int n) { wait(barrier, n & 1); }
    // Until the time before the n-th is over, of which there is none before the first.
    __device__ __forceinline__ void wait_for_previous(int n) { wait(barrier, n & 1 ^ 1); }
};

// A place in shared memory that one role fills and another reads, item after item.
struct Handover {
    Event is_full, is_empty;

    __device__ __forceinline__ void init(int writers, int readers)
    {
        is_full.init(writers);
        is_empty.init(readers);
    }
    __device__ __forceinline__ void wait_until_empty(int n) { is_empty.wait_for_previous(n); }
    __device__ __forceinline__ void publish() { is_full.arrive(); }
    __device__ __forceinline__ void wait_until_full(int n) { is_full.wait_for(n); }
    __device__ __forceinline__ void release() { is_empty.arrive(); }
};
