"""`cupy.RawKernel` -> PTX through NVRTC, with what CuPy itself would pass to it; natively CuPy launches it."""
