"""Kernel objects -> PTX, on any machine: NVRTC for CuPy's RawKernels, libNVVM through numba-cuda for Numba's."""
