// How elements of Q, K, V and O are stored: in bfloat16. `widen` gives the float32 of a stored element, `narrow` stores one,
// rounded to nearest even. Both take float32, too, for intermediate results.
#include <cuda_bf16.h>

typedef __nv_bfloat16 stored;
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void narrow(float x, __nv_bfloat16 *to) { *to = __float2bfloat16_rn(x); }
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ void narrow(float x, float *to) { *to = x; }
