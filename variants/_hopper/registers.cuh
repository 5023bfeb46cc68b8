// Registers of warpgroups. hopper.cuh is put before this text.

// Registers that each thread of a warpgroup has from here on, fewer or more than before (PTX ISA: setmaxnreg).
template <int REGISTERS> __device__ __forceinline__ void keep_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ __forceinline__ void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// x, of which the compiler knows nothing: what follows from it is computed here, and takes no register before.
__device__ __forceinline__ int unknown(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

// Registers have no index at run time: what is wanted first moves by the first `STEP` of them, in a ring.
template <int STEP, typename T, int N> __device__ __forceinline__ void move_up(T (&ring)[N])
{
    T first[STEP];
#pragma unroll
    for (int i = 0; i < STEP; ++i) first[i] = ring[i];
#pragma unroll
    for (int i = STEP; i < N; ++i) ring[i - STEP] = ring[i];
#pragma unroll
    for (int i = 0; i < STEP; ++i) ring[N - STEP + i] = first[i];
}
