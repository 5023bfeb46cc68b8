// Sums dK and dV over the devices that a block of keys visits, in float32, a thread per element. `stored` is the problem's
// dtype. The Numba twin is numba_kernel.py.

// dK_s = dK_s + dK_t, dV_s = dV_s + dV_t: the sum, which has come from the device before, and the part of this device. The
// first part begins the sum.
extern "C" __global__ void ring_add(const stored *dK_t, const stored *dV_t, float *dK_s, float *dV_s, long long count,
                                    int is_first)
{
    const long long e = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= count) return;
    dK_s[e] = is_first ? widen(dK_t[e]) : dK_s[e] + widen(dK_t[e]);
    dV_s[e] = is_first ? widen(dV_t[e]) : dV_s[e] + widen(dV_t[e]);
}

// dK = dK_s + dK_t, dV = dV_s + dV_t on the device to which they belong, rounded to the problem's dtype.
extern "C" __global__ void ring_store(const stored *dK_t, const stored *dV_t, const float *dK_s, const float *dV_s,
                                      stored *dK, stored *dV, long long count)
{
    const long long e = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= count) return;
    narrow(dK_s[e] + widen(dK_t[e]), &dK[e]);
    narrow(dV_s[e] + widen(dV_t[e]), &dV[e]);
}
