"""A kernel that loads a box of a tensor and stores it again, and the layout of a swizzled box in shared memory."""

from __future__ import annotations

import numpy as np

X = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
WHOLE = """extern "C" __global__ void k(
  const __grid_constant__ Map from, const __grid_constant__ Map to, float* y, float* z, int x0, int y0, int bytes) {
  extern __shared__ __align__(1024) float s[]; __shared__ u64 bar; int t = threadIdx.x;
  if (t == 0) { init(&bar, 1); asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  __syncthreads();
  if (t == 0) { load2(s, &from, x0, y0, &bar); expect(&bar, bytes); }
  z[t] = s[t];
  wait(&bar, 0);
  for (int i = t; i < bytes / 4; i += 32) y[i] = s[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (t == 0) { store2(s, &to, x0, y0); COMMIT(); STORED(); }
}"""


def swizzled(box: np.ndarray, span: int) -> np.ndarray:
    """Rows of a box as they lie in shared memory: piece p of 16 bytes of 128-byte line n goes to p ^ n, in part."""
    pieces = box.reshape(-1, 4)
    places = np.arange(len(pieces))
    mask = span // 16 - 1 if span else 0
    out = np.empty_like(pieces)
    out[places ^ ((places >> 3) & mask)] = pieces
    return out.reshape(-1)
