"""Compiles functions under `numba.cuda.jit` to PTX with libNVVM, and launches them with Numba on a GPU."""
