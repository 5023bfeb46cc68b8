"""Functions under `numba.cuda.jit` -> PTX through libNVVM; natively Numba launches them."""
