// Named barriers, and who may issue products. The plan chooses one of the two types below as `Turns`. hopper.cuh is put before
// this text.
//
// Compile-time parameter: BR (rows per tile, 64 for each consumer warpgroup).

constexpr int CONSUMERS = BR / 64;
constexpr int CONSUMER_THREADS = WARPGROUP * CONSUMERS;

// Numbers of named barriers. 0 is __syncthreads().
constexpr int ALL_CONSUMERS = 1;
constexpr int OWN = 2;   // and the next ones: of one warpgroup
constexpr int TURN = 5;  // and the next ones: of one consumer

// Consumers take turns with the tensor cores: others have their softmax while one multiplies (the paper's section 3.1).
// The first one begins.
struct InTurns {
    static __device__ __forceinline__ void start(int consumer)
    {
        if (consumer == CONSUMERS - 1) end(consumer);
    }
    static __device__ __forceinline__ void begin(int consumer) { sync_threads(TURN + consumer, 2 * WARPGROUP); }
    static __device__ __forceinline__ void end(int consumer)
    {
        arrive_threads(TURN + (consumer + 1) % CONSUMERS, 2 * WARPGROUP);
    }
};

struct NoTurns {
    static __device__ __forceinline__ void start(int) {}
    static __device__ __forceinline__ void begin(int) {}
    static __device__ __forceinline__ void end(int) {}
};
