// How elements of Q, K, V and O are stored: in float16. `widen` gives the float32 of a stored element, `narrow` stores one,
// rounded to nearest even. Both take float32, too, for intermediate results.
#include <cuda_fp16.h>

typedef __half stored;
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ void narrow(float x, __half *to) { *to = __float2half_rn(x); }
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ void narrow(float x, float *to) { *to = x; }
