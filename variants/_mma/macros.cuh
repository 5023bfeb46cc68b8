// What kernels that still choose their features by macros have before mma.cuh: the stored type, and bands.
//
// Compile-time parameter: STORED_AS_float16 or STORED_AS_bfloat16.

#if defined(STORED_AS_float16)
#include <cuda_fp16.h>
typedef __half stored;
#define MMA_TYPE "f16"
#else
#include <cuda_bf16.h>
typedef __nv_bfloat16 stored;
#define MMA_TYPE "bf16"
#endif

#define MINUS_INFINITY __int_as_float(0xff800000)

#ifndef SPANS  // a band; _tiles/spans.cuh has the same for other masks
#define LIMITS int before, int after
#define KEEP_LIMITS(first_row, rows)

// Row i lies on key i + kv_len - q_len, and sees the keys from `before` ahead of that one to `after` behind it. No row is
// on a key beyond the last, so the first that it sees is none either. A row that lies too far ahead of all keys has
// end_seen = 0.
__device__ __forceinline__ int first_seen(int row, int q_len, int kv_len, int before)
{
    return max(row + kv_len - q_len - before, 0);
}

__device__ __forceinline__ int end_seen(int row, int q_len, int kv_len, int after)
{
    return min(max(row + kv_len - q_len + after + 1, 0), kv_len);
}
#endif

