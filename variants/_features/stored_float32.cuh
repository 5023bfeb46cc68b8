// How elements of Q, K, V and O are stored: in float32. `widen` gives the float32 of a stored element, `narrow` stores one.

typedef float stored;
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ void narrow(float x, float *to) { *to = x; }
