"""Compiles `cupy.RawKernel` with NVRTC and the options that CuPy passes, and launches it with CuPy on a GPU."""
